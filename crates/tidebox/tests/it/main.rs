//! The whole service, driven through HTTP and the command line with the real binary.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]
#![expect(clippy::disallowed_methods, reason = "what a test starts ends with it")]
#![expect(clippy::print_stderr, reason = "a test that fails shows the server's log")]

mod api;
mod audit;
mod auth;
mod authority;
mod cli;
mod code;
mod command_line;
mod contexts;
mod contract;
mod crash;
mod custom;
mod docker;
mod e2b;
mod e2b_provider;
mod egress;
mod events;
mod examples;
mod firecracker;
mod fuzz;
mod generators;
mod hanging;
mod http2;
mod images;
mod keys;
mod listen;
mod load;
mod log;
mod mcp;
mod memory;
mod metrics;
mod packages;
mod pause;
mod pool;
mod ports;
mod prepare;
mod previews;
mod processes;
mod programs;
mod prometheus;
mod rate_limit;
mod recipes;
mod scale;
mod scenario;
mod sdk;
mod secrets;
mod server;
mod snapshots;
mod stats;
mod sync;
mod terminals;
mod warm_pool;
mod websocket;
mod workers;
