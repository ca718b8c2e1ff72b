//! stub
#![expect(missing_docs, reason = "x")]
use std::{net::IpAddr,path::PathBuf,time::Duration};
#[derive(Debug,Clone)] pub struct Config{pub server:Server,pub data_dir:PathBuf,pub database:Database,pub defaults:Defaults,pub limits:Limits,pub retention:Retention,pub providers:Providers}
#[derive(Debug,Clone)] pub struct Server{pub host:IpAddr,pub port:u16,pub preview_domain:String,pub allowed_hosts:Vec<String>}
#[derive(Debug,Clone)] pub struct Database{pub path:PathBuf}
#[derive(Debug,Clone)] pub struct Defaults{pub image:Option<String>,pub ttl:Duration,pub memory_mb:u32,pub vcpus:u32,pub pids:u32,pub max_ttl:Duration,pub default_exec_timeout:Duration,pub max_exec_timeout:Duration,pub max_sandboxes:u64,pub max_sandboxes_per_owner:u64}
#[derive(Debug,Clone)] pub struct Limits{pub max_output_bytes:usize,pub max_file_bytes:u64,pub reserve_disk_mb:u64}
#[derive(Debug,Clone)] pub struct Retention{pub destroyed:Duration}
#[derive(Debug,Clone)] pub struct Providers{pub default:DefaultProvider,pub native:NativeS,pub mock:MockS}
#[derive(Debug,Clone)] pub enum DefaultProvider{Auto,Named(String)}
#[derive(Debug,Clone,Copy,PartialEq,Eq)] pub enum Enabled{Auto,True,False}
#[derive(Debug,Clone)] pub struct NativeS{pub enabled:Enabled,pub subids:Option<(u32,u32)>,pub cgroup_parent:Option<String>}
#[derive(Debug,Clone)] pub struct MockS{pub enabled:bool}
