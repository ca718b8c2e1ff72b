//! What the operator may set, as values.

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

/// Everything that the operator may set, with nothing left to default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where and for whom the server listens.
    pub server: Server,
    /// The folder that holds everything that must survive a restart; absolute.
    pub data_dir: PathBuf,
    /// Where rows are kept.
    pub database: Database,
    /// What a request that says nothing gets, and the most it may ask for.
    pub defaults: Defaults,
    /// Bounds on what passes through the server.
    pub limits: Limits,
    /// How long traces are kept.
    pub retention: Retention,
    /// What the server says about itself.
    pub logging: Logging,
    /// The image store.
    pub images: Images,
    /// The runtimes.
    pub providers: Providers,
    /// Who may use the API.
    pub auth: Auth,
    /// How many requests one caller may make.
    pub rate_limit: RateLimit,
    /// Sandboxes of several users in one box.
    pub pool: Pool,
    /// Other servers that run sandboxes for this one, by worker id.
    pub workers: BTreeMap<String, Worker>,
    /// What this server is to a control plane, if it works for one.
    pub worker: WorkerSelf,
    /// How long workers are trusted without being heard.
    pub leases: Leases,
}

/// Where and for whom the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The address.
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
    /// The chain, PEM.
    pub cert_file: Option<PathBuf>,
    /// The private key, PEM.
    pub key_file: Option<PathBuf>,
}

/// Where rows are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// The SQLite file; absolute.
    pub path: PathBuf,
}

/// What a request that says nothing gets, and the most it may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The image; `None` leaves it to the provider.
    pub image: Option<String>,
    /// A sandbox's lifetime.
    pub ttl: Duration,
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// The most processes and threads in a sandbox.
    pub pids: u32,
    /// The longest lifetime that may be asked for.
    pub max_ttl: Duration,
    /// The most memory of one sandbox in mebibytes; `None` derives it from the machine.
    pub max_memory_mb: Option<u32>,
    /// The most virtual CPUs of one sandbox; `None` derives it from the machine.
    pub max_vcpus: Option<u32>,
    /// The largest file system of one sandbox in mebibytes; `None` derives it from the
    /// machine.
    pub max_disk_mb: Option<u32>,
    /// A command's deadline.
    pub default_exec_timeout: Duration,
    /// The longest deadline that may be asked for.
    pub max_exec_timeout: Duration,
    /// The most active sandboxes; 0 for no limit.
    pub max_sandboxes: u64,
    /// The most active sandboxes of one owner; 0 for no limit.
    pub max_sandboxes_per_owner: u64,
    /// What a spawn gets that finds no room.
    pub spawn_overflow: Overflow,
    /// How long a spawn may wait for room.
    pub spawn_queue_timeout: Duration,
    /// How many spawns may wait for room at once.
    pub max_spawn_queue: usize,
    /// The most of them that may be one owner's; `None` for as many as it leaves free.
    pub max_spawn_queue_per_owner: Option<usize>,
}

/// What a request gets that finds no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// An error at once.
    Reject,
    /// A place in a queue.
    Queue,
}

impl Overflow {
    /// The name as it is configured and reported.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Overflow::Reject => "reject",
            Overflow::Queue => "queue",
        }
    }
}

/// Who may use the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// Whether the API asks for a key.
    pub enabled: bool,
    /// The key that opens the API.
    pub api_key: Option<Secret>,
    /// Where `api_key` was read from, if from a file.
    pub api_key_file: Option<PathBuf>,
    /// The key that opens `/admin/*`, and the API as well.
    pub admin_api_key: Option<Secret>,
    /// Where `admin_api_key` was read from, if from a file.
    pub admin_api_key_file: Option<PathBuf>,
    /// Whether the API key opens `/admin/*` while there is no admin key.
    pub admin_fallback_enabled: bool,
    /// Groups of routes outside `/admin/*` that ask for the admin key.
    pub admin_only: Vec<RouteGroup>,
    /// How long rows of the audit history are kept.
    pub admin_audit_retention: Duration,
    /// How many rows of the audit history are kept.
    pub admin_audit_max_entries: u64,
    /// The token that any worker without one of its own may use.
    pub worker_token: Option<Secret>,
    /// Where `worker_token` was read from, if from a file.
    pub worker_token_file: Option<PathBuf>,
    /// Tokens by worker id.
    pub worker_tokens: BTreeMap<String, Secret>,
    /// The key that signed worker tokens are made and checked with.
    pub worker_signing_key: Option<Secret>,
    /// Where `worker_signing_key` was read from, if from a file.
    pub worker_signing_key_file: Option<PathBuf>,
    /// Earlier signing keys that are still accepted.
    pub worker_signing_keys: Vec<Secret>,
    /// Signed tokens (`jti`) that are refused.
    pub worker_revoked_token_ids: Vec<String>,
}

/// A group of routes that `auth.admin_only` can close to everyone but the admin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteGroup {
    /// `/quotas`
    Quotas,
    /// `/templates`
    Templates,
    /// `/providers`
    Providers,
    /// `/workers`
    Workers,
    /// `/diagnostics`
    Diagnostics,
    /// `/metrics`
    Metrics,
    /// `/events`
    Events,
}

/// How many requests one caller may make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Whether there is a limit.
    pub enabled: bool,
    /// How fast a bucket fills.
    pub requests_per_minute: u32,
    /// How much a bucket holds.
    pub burst: u32,
    /// Whose bucket a request takes from.
    pub key_by: RateKey,
    /// How long a bucket is kept that nobody takes from.
    pub bucket_ttl: Duration,
    /// How often such buckets are looked for.
    pub cleanup_interval: Duration,
}

/// Whose bucket a request takes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateKey {
    /// `X-User-ID`, else the API key, else the address.
    Owner,
    /// The API key, else the address.
    ApiKey,
    /// The address.
    Ip,
}

impl RateKey {
    /// The name as it is configured and reported.
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
    /// Whether sandboxes share boxes.
    pub enabled: bool,
    /// The most boxes.
    pub max_vms: u32,
    /// The most users in a box.
    pub max_users_per_vm: u32,
    /// What a spawn gets that finds every box full.
    pub overflow: Overflow,
}

/// Where another Tidebox is reached that runs sandboxes for this one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Worker {
    /// Its base URL, such as `https://w1.example.com:7423`.
    pub url: String,
    /// The key that its API asks for.
    pub api_key: Option<Secret>,
    /// Where `api_key` was read from, if from a file.
    pub api_key_file: Option<PathBuf>,
    /// The authority that signed its certificate, PEM; `None` for the usual ones.
    pub ca_file: Option<PathBuf>,
}

/// What this server is to a control plane, if it works for one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerSelf {
    /// The control plane's base URL; empty if it is not configured.
    pub control_plane: String,
    /// The id of this worker; `None` for the name of the host.
    pub id: Option<String>,
    /// What it shows to the control plane.
    pub token: Option<Secret>,
    /// The file that holds it instead, which is read for every request.
    pub token_file: Option<PathBuf>,
    /// The authority that signed the control plane's certificate, PEM; `None`
    /// for the usual ones.
    pub ca_file: Option<PathBuf>,
}

/// How long workers are trusted without being heard. The same on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leases {
    /// How long a lease lasts.
    pub ttl: Duration,
    /// How long after its end the sandbox is ended and given up.
    pub grace: Duration,
    /// How often a worker beats and renews.
    pub heartbeat_interval: Duration,
    /// Silence after which a worker is stale.
    pub stale_after: Duration,
}

/// Bounds on what passes through the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of each output stream in a buffered result.
    pub max_output_bytes: usize,
    /// The largest file that may be written.
    pub max_file_bytes: u64,
    /// Free space in mebibytes that sandboxes must leave to the server.
    pub reserve_disk_mb: u64,
    /// Free inodes that sandboxes must leave to the server.
    pub reserve_inodes: u64,
    /// Memory in mebibytes that all requests together may hold.
    pub request_memory_mb: u64,
    /// The most templates.
    pub max_templates: u64,
    /// The most owners' quotas.
    pub max_quotas: u64,
}

/// How long traces are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// How long the row of a destroyed sandbox stays.
    pub destroyed: Duration,
    /// The most such rows.
    pub max_destroyed: u64,
    /// The most such rows of one owner.
    pub max_destroyed_per_owner: u64,
    /// The most rows of failed sandboxes.
    pub max_failed: u64,
    /// The most such rows of one owner.
    pub max_failed_per_owner: u64,
}

/// What the server says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    /// The least serious line that is written.
    pub level: Level,
    /// How a line looks.
    pub format: Format,
}

/// How serious a log line must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What needs an operator.
    Error,
    /// What may need one.
    Warn,
    /// What the server does.
    Info,
    /// How it does it.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// The name as it is configured, which is the one `tracing` knows.
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

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// The runtimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Providers {
    /// Which one a request that names none gets.
    pub default: DefaultProvider,
    /// Boxes made of the kernel's own namespaces.
    pub native: Native,
    /// Containers of a Docker Engine.
    pub docker: Docker,
    /// Boxes without privileges.
    pub proot: Proot,
    /// The test double.
    pub mock: Mock,
    /// Another service that speaks this API.
    pub custom: Custom,
}

/// Another service that speaks this API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Custom {
    /// Whether it is offered.
    pub enabled: bool,
    /// The provider's name in this server's API.
    pub name: String,
    /// Its base URL.
    pub base_url: String,
    /// The key that its API asks for.
    pub api_key: Option<Secret>,
    /// Where `api_key` was read from, if from a file.
    pub api_key_file: Option<PathBuf>,
    /// The authorities that may vouch for it; `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// The provider that is asked of it; `None` for its default.
    pub remote_provider: Option<String>,
    /// How long one of its answers may take to begin.
    pub timeout: Duration,
}

/// Which provider a request that names none gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultProvider {
    /// The first that is healthy.
    Auto,
    /// This one.
    Named(String),
}

/// Whether a provider is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enabled {
    /// When what it needs is there.
    Auto,
    /// Always, and shown unhealthy while it is not.
    True,
    /// Never.
    False,
}

/// Boxes made of the kernel's own namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Native {
    /// Whether it is offered.
    pub enabled: Enabled,
    /// First host id and count of the range that boxes are mapped to; `None`
    /// leaves the choice to the provider.
    pub subids: Option<(u32, u32)>,
    /// The control group below which boxes get theirs; `None` leaves the choice
    /// to the provider. Without `.` and `..`.
    pub cgroup_parent: Option<String>,
}

/// The test double.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mock {
    /// Whether it is offered.
    pub enabled: bool,
}

/// Nothing set: what the table of keys fills with its defaults. An empty path
/// stands for one that is worked out at the end.
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
