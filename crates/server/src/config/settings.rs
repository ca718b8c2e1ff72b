//! Settings of the operator, as values.

mod images;
mod runtimes;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

pub use images::{Images, Registry};
pub use runtimes::{Docker, DockerTls, Proot};

use super::Secret;

/// All settings, with nothing left to default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Addresses, names and TLS of the listener.
    pub server: Server,
    /// The folder that holds everything that must survive a restart; absolute.
    pub data_dir: PathBuf,
    /// Database that holds all rows.
    pub database: Database,
    /// Values for requests that state none, and the most that a request may ask for.
    pub defaults: Defaults,
    /// Bounds on sizes, disk space, memory and rows.
    pub limits: Limits,
    /// Retention of the rows of ended sandboxes.
    pub retention: Retention,
    /// Level and format of the log.
    pub logging: Logging,
    /// Image store: pulls, sizes and registries.
    pub images: Images,
    /// Providers that run the boxes.
    pub providers: Providers,
    /// Keys and tokens of callers and workers.
    pub auth: Auth,
    /// Rate limit of each caller.
    pub rate_limit: RateLimit,
    /// Sandboxes of several users in one box.
    pub pool: Pool,
    /// Other servers that run sandboxes for this one, by worker id.
    pub workers: BTreeMap<String, Worker>,
    /// Role of this server as a worker of a control plane.
    pub worker: WorkerSelf,
    /// Times of leases and heartbeats.
    pub leases: Leases,
}

/// Addresses, names and TLS of the listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// IP address to listen on.
    pub host: IpAddr,
    /// The TCP port; 0 lets the kernel choose one.
    pub port: u16,
    /// The domain shown on spawn responses.
    pub preview_domain: String,
    /// Further names that a request's `Host` may have; lower case, no ports.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the API, such as `https://app.example.com`;
    /// `*` for any.
    pub cors_allowed_origins: Vec<String>,
    /// The certificate to serve HTTPS with; `None` serves HTTP.
    pub tls: Tls,
    /// A unix socket to listen on besides TCP; absolute.
    pub unix_socket: Option<PathBuf>,
    /// Peers whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
}

/// The certificate to serve HTTPS with: both files, or neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// File of the certificate chain, PEM.
    pub cert_file: Option<PathBuf>,
    /// File of the private key, PEM.
    pub key_file: Option<PathBuf>,
}

/// Database that holds all rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// The SQLite file; absolute.
    pub path: PathBuf,
}

/// Values for requests that state none, and the most that a request may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// Image of a spawn; `None` leaves it to the provider.
    pub image: Option<String>,
    /// Lifetime of a sandbox.
    pub ttl: Duration,
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// The most processes and threads in a sandbox.
    pub pids: u32,
    /// The longest lifetime that a request may ask for.
    pub max_ttl: Duration,
    /// The most memory of one sandbox in mebibytes; `None` derives it from the machine.
    pub max_memory_mb: Option<u32>,
    /// The most virtual CPUs of one sandbox; `None` derives it from the machine.
    pub max_vcpus: Option<u32>,
    /// The largest file system of one sandbox in mebibytes; `None` derives it from the
    /// machine.
    pub max_disk_mb: Option<u32>,
    /// Deadline of a command.
    pub default_exec_timeout: Duration,
    /// The longest deadline that a request may ask for.
    pub max_exec_timeout: Duration,
    /// The most active sandboxes; 0 for no limit.
    pub max_sandboxes: u64,
    /// The most active sandboxes of one owner; 0 for no limit.
    pub max_sandboxes_per_owner: u64,
    /// Treatment of a spawn that finds no room.
    pub spawn_overflow: Overflow,
    /// The longest time that a spawn may wait for room.
    pub spawn_queue_timeout: Duration,
    /// The most spawns that may wait for room at once.
    pub max_spawn_queue: usize,
    /// The most waiting spawns of one owner; `None` for as many as it leaves free.
    pub max_spawn_queue_per_owner: Option<usize>,
}

/// Treatment of a request that finds no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// An error at once.
    Reject,
    /// A place in a queue.
    Queue,
}

impl Overflow {
    /// Returns the name as it is configured and reported.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Overflow::Reject => "reject",
            Overflow::Queue => "queue",
        }
    }
}

/// Keys and tokens of callers and workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// True if the API asks for a key.
    pub enabled: bool,
    /// The key that opens the API.
    pub api_key: Option<Secret>,
    /// File from which `api_key` was read, if any.
    pub api_key_file: Option<PathBuf>,
    /// The key that opens `/admin/*`, and the API as well.
    pub admin_api_key: Option<Secret>,
    /// File from which `admin_api_key` was read, if any.
    pub admin_api_key_file: Option<PathBuf>,
    /// True if the API key opens `/admin/*` while there is no admin key.
    pub admin_fallback_enabled: bool,
    /// Groups of routes outside `/admin/*` that ask for the admin key.
    pub admin_only: Vec<RouteGroup>,
    /// Time for which rows of the audit history are kept.
    pub admin_audit_retention: Duration,
    /// The most rows of the audit history that are kept.
    pub admin_audit_max_entries: u64,
    /// The token that any worker without one of its own may use.
    pub worker_token: Option<Secret>,
    /// File from which `worker_token` was read, if any.
    pub worker_token_file: Option<PathBuf>,
    /// Tokens of single workers, by worker id.
    pub worker_tokens: BTreeMap<String, Secret>,
    /// The key that signed worker tokens are made and checked with.
    pub worker_signing_key: Option<Secret>,
    /// File from which `worker_signing_key` was read, if any.
    pub worker_signing_key_file: Option<PathBuf>,
    /// Earlier signing keys that are still accepted.
    pub worker_signing_keys: Vec<Secret>,
    /// Signed tokens (`jti`) that are refused.
    pub worker_revoked_token_ids: Vec<String>,
}

/// A group of routes that `auth.admin_only` closes to all but the admin key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteGroup {
    /// Routes at `/quotas` and below.
    Quotas,
    /// Routes at `/templates` and below.
    Templates,
    /// Routes at `/providers` and below.
    Providers,
    /// Routes at `/workers` and below.
    Workers,
    /// Routes at `/diagnostics` and below.
    Diagnostics,
    /// Routes at `/metrics` and below.
    Metrics,
    /// Routes at `/events` and below.
    Events,
}

/// Rate limit of each caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// True if there is a limit.
    pub enabled: bool,
    /// Tokens that a bucket regains in a minute.
    pub requests_per_minute: u32,
    /// Capacity of a bucket, in tokens.
    pub burst: u32,
    /// Identity by which requests share a bucket.
    pub key_by: RateKey,
    /// Time without requests after which a full bucket is removed.
    pub bucket_ttl: Duration,
    /// Interval at which such buckets are looked for.
    pub cleanup_interval: Duration,
}

/// Identity by which requests share a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateKey {
    /// `X-User-ID`, else the API key, else the address.
    Owner,
    /// The API key, else the address.
    ApiKey,
    /// Address of the client.
    Ip,
}

impl RateKey {
    /// Returns the name as it is configured and reported.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RateKey::Owner => "owner",
            RateKey::ApiKey => "api_key",
            RateKey::Ip => "ip",
        }
    }
}

/// Sandboxes of several users in one box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// True if sandboxes share boxes.
    pub enabled: bool,
    /// The most shared boxes at once.
    pub max_vms: u32,
    /// The most users in a box.
    pub max_users_per_vm: u32,
    /// Treatment of a spawn that finds every box full.
    pub overflow: Overflow,
}

/// Access to another Tidebox that runs sandboxes for this one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Worker {
    /// Its base URL, such as `https://w1.example.com:7423`.
    pub url: String,
    /// The key that its API asks for.
    pub api_key: Option<Secret>,
    /// File from which `api_key` was read, if any.
    pub api_key_file: Option<PathBuf>,
    /// The authority that signed its certificate, PEM; `None` for the usual ones.
    pub ca_file: Option<PathBuf>,
}

/// Role of this server as a worker of a control plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerSelf {
    /// The control plane's base URL; empty if it is not configured.
    pub control_plane: String,
    /// The id of this worker; `None` for the name of the host.
    pub id: Option<String>,
    /// Credential that it shows to the control plane.
    pub token: Option<Secret>,
    /// File that holds the token instead, which is read for every request.
    pub token_file: Option<PathBuf>,
    /// The authority that signed the control plane's certificate, PEM; `None`
    /// for the usual ones.
    pub ca_file: Option<PathBuf>,
}

/// Times of leases and heartbeats. They must be the same on the control plane and its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leases {
    /// Duration of a lease.
    pub ttl: Duration,
    /// Time from the end of a lease until the worker ends the sandbox and the control plane
    /// gives it up.
    pub grace: Duration,
    /// Interval at which a worker sends a heartbeat and renews its leases.
    pub heartbeat_interval: Duration,
    /// Silence after which a worker is stale.
    pub stale_after: Duration,
}

/// Bounds on sizes, disk space, memory and rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of each output stream in a buffered result.
    pub max_output_bytes: usize,
    /// Size of the largest file that may be written, in bytes.
    pub max_file_bytes: u64,
    /// Free space in mebibytes that sandboxes must leave to the server.
    pub reserve_disk_mb: u64,
    /// Free inodes that sandboxes must leave to the server.
    pub reserve_inodes: u64,
    /// Memory in mebibytes that all requests together may hold.
    pub request_memory_mb: u64,
    /// The most templates at once.
    pub max_templates: u64,
    /// The most owners with a quota of their own.
    pub max_quotas: u64,
}

/// Retention of the rows of ended sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Time for which the row of a destroyed sandbox is kept.
    pub destroyed: Duration,
    /// The most rows of destroyed sandboxes.
    pub max_destroyed: u64,
    /// The most rows of destroyed sandboxes of one owner.
    pub max_destroyed_per_owner: u64,
    /// The most rows of failed sandboxes.
    pub max_failed: u64,
    /// The most rows of failed sandboxes of one owner.
    pub max_failed_per_owner: u64,
}

/// Level and format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    /// Least severe level that is written.
    pub level: Level,
    /// Format of a log line.
    pub format: Format,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Conditions that need an operator.
    Error,
    /// Conditions that may need an operator.
    Warn,
    /// Normal work of the server.
    Info,
    /// Details of that work.
    Debug,
    /// Every line there is.
    Trace,
}

impl Level {
    /// Returns the name as it is configured, which is the one `tracing` knows.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// Lines for people to read.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Providers that run the boxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Providers {
    /// Provider of a request that names none.
    pub default: DefaultProvider,
    /// Boxes made of the kernel's own namespaces.
    pub native: Native,
    /// Containers of a Docker Engine.
    pub docker: Docker,
    /// Boxes made with `ptrace`, without privileges.
    pub proot: Proot,
    /// Test double, which isolates nothing.
    pub mock: Mock,
    /// Another service that speaks this API.
    pub custom: Custom,
}

/// Another service that speaks this API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Custom {
    /// True if it is offered.
    pub enabled: bool,
    /// The provider's name in this server's API.
    pub name: String,
    /// Base URL of the service.
    pub base_url: String,
    /// The key that its API asks for.
    pub api_key: Option<Secret>,
    /// File from which `api_key` was read, if any.
    pub api_key_file: Option<PathBuf>,
    /// File of the authorities to trust, PEM; `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// Provider that is requested from it; `None` for its default.
    pub remote_provider: Option<String>,
    /// The longest time until one of its answers begins.
    pub timeout: Duration,
}

/// Provider of a request that names none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultProvider {
    /// The first of native, docker and proot that is healthy.
    Auto,
    /// Provider of this name.
    Named(String),
}

/// Condition under which a provider is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enabled {
    /// Offered if it can work on this host.
    Auto,
    /// Offered always, and shown as unhealthy while it is.
    True,
    /// Never offered, even if it can work on this host.
    False,
}

/// Boxes made of the kernel's own namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Native {
    /// Condition under which it is offered.
    pub enabled: Enabled,
    /// First host id and count of the range that boxes are mapped to; `None`
    /// leaves the choice to the provider.
    pub subids: Option<(u32, u32)>,
    /// The control group below which boxes get theirs; `None` leaves the choice
    /// to the provider. Without `.` and `..`.
    pub cgroup_parent: Option<String>,
}

/// Test double, which isolates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mock {
    /// True if it is offered.
    pub enabled: bool,
}

/// Returns a configuration with nothing set, which the table of keys fills with its defaults. An
/// empty path stands for one that is derived at the end.
pub(super) fn blank() -> Config {
    Config {
        server: Server {
            host: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            port: 0,
            preview_domain: String::new(),
            allowed_hosts: Vec::new(),
            cors_allowed_origins: Vec::new(),
            tls: Tls { cert_file: None, key_file: None },
            unix_socket: None,
            trusted_proxies: Vec::new(),
        },
        data_dir: PathBuf::new(),
        database: Database { path: PathBuf::new() },
        defaults: Defaults {
            image: None,
            ttl: Duration::ZERO,
            memory_mb: 0,
            vcpus: 0,
            pids: 0,
            max_ttl: Duration::ZERO,
            max_memory_mb: None,
            max_vcpus: None,
            max_disk_mb: None,
            default_exec_timeout: Duration::ZERO,
            max_exec_timeout: Duration::ZERO,
            max_sandboxes: 0,
            max_sandboxes_per_owner: 0,
            spawn_overflow: Overflow::Reject,
            spawn_queue_timeout: Duration::ZERO,
            max_spawn_queue: 0,
            max_spawn_queue_per_owner: None,
        },
        limits: Limits {
            max_output_bytes: 0,
            max_file_bytes: 0,
            reserve_disk_mb: 0,
            reserve_inodes: 0,
            request_memory_mb: 0,
            max_templates: 0,
            max_quotas: 0,
        },
        retention: Retention {
            destroyed: Duration::ZERO,
            max_destroyed: 0,
            max_destroyed_per_owner: 0,
            max_failed: 0,
            max_failed_per_owner: 0,
        },
        logging: Logging { level: Level::Info, format: Format::Auto },
        images: Images::default(),
        providers: Providers {
            default: DefaultProvider::Auto,
            native: Native { enabled: Enabled::Auto, subids: None, cgroup_parent: None },
            docker: Docker::default(),
            proot: Proot::default(),
            mock: Mock { enabled: false },
            custom: Custom {
                enabled: false,
                name: String::new(),
                base_url: String::new(),
                api_key: None,
                api_key_file: None,
                ca_file: None,
                remote_provider: None,
                timeout: Duration::ZERO,
            },
        },
        auth: Auth {
            enabled: false,
            api_key: None,
            api_key_file: None,
            admin_api_key: None,
            admin_api_key_file: None,
            admin_fallback_enabled: false,
            admin_only: Vec::new(),
            admin_audit_retention: Duration::ZERO,
            admin_audit_max_entries: 0,
            worker_token: None,
            worker_token_file: None,
            worker_tokens: BTreeMap::new(),
            worker_signing_key: None,
            worker_signing_key_file: None,
            worker_signing_keys: Vec::new(),
            worker_revoked_token_ids: Vec::new(),
        },
        rate_limit: RateLimit {
            enabled: false,
            requests_per_minute: 0,
            burst: 0,
            key_by: RateKey::Owner,
            bucket_ttl: Duration::ZERO,
            cleanup_interval: Duration::ZERO,
        },
        pool: Pool { enabled: false, max_vms: 0, max_users_per_vm: 0, overflow: Overflow::Reject },
        workers: BTreeMap::new(),
        worker: WorkerSelf::default(),
        leases: Leases::default(),
    }
}
