//! Settings of the operator: every key, with its type, default and description.

mod access;
mod compat;
mod egress;
mod images;
mod limits;
mod ports;
mod providers;
mod warm_pool;
mod workers;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

pub use access::{Auth, Pool, RateKey, RateLimit, RouteGroup};
pub use compat::{Compat, CompatE2b};
pub use egress::{DefaultEgress, Egress, OwnerEgress, Secrets};
pub use images::{Images, Registry};
pub use limits::{Defaults, Limits, Overflow, Retention, Snapshots};
pub use ports::Ports;
pub use providers::{
    Custom, DefaultProvider, Docker, DockerTls, E2b, E2bTemplate, Enabled, Mock, Native, Proot, Providers,
};
pub use warm_pool::WarmPool;
pub use workers::{Leases, Worker, WorkerSelf};

use super::declare::{Nested, Sections, section, words};
use super::read::{List, Optional, PRIVATE_FILE};
use super::text::{BY_POOL_ENTRY, BY_WORKER, DATABASE, HOST_NAME, ORIGIN};

section! {
    /// All settings.
    pub struct Config {
        pub server: Server as Nested,
        /// Folder that holds everything that must survive a restart: an absolute path, or one that
        /// starts with `~/`. Unset: `/var/lib/tidebox` for root, else `~/.local/share/tidebox`.
        pub data_dir: PathBuf,
        pub database: Database as Nested,
        pub defaults: Defaults as Nested,
        pub limits: Limits as Nested,
        pub snapshots: Snapshots as Nested,
        pub retention: Retention as Nested,
        pub logging: Logging as Nested,
        pub metrics: Metrics as Nested,
        pub providers: Providers as Nested,
        pub images: Images as Nested,
        pub egress: Egress as Nested,
        pub secrets: Secrets as Nested,
        pub ports: Ports as Nested,
        pub compat: Compat as Nested,
        pub auth: Auth as Nested,
        pub rate_limit: RateLimit as Nested,
        pub pool: Pool as Nested,
        /// Boxes that are kept ready, under names of your choice.
        pub warm_pool: BTreeMap<String, WarmPool> as Sections(BY_POOL_ENTRY),
        /// Other servers that run sandboxes for this one, by worker id.
        pub workers: BTreeMap<String, Worker> as Sections(BY_WORKER),
        pub worker: WorkerSelf as Nested,
        pub leases: Leases as Nested,
    }
}

section! {
    /// Addresses, names and TLS of the listener.
    pub struct Server {
        /// IP address to listen on. Set `auth.enabled` before you use anything but loopback.
        pub host: IpAddr = "127.0.0.1",
        /// TCP port to listen on; 0 lets the kernel choose one.
        pub port: u16 = "7423",
        /// Domain of previews: each port of a sandbox has a host name below it. Use a domain that
        /// serves nothing else. A request's `Host` may be the domain itself.
        pub preview_domain: String = "localhost" as HOST_NAME,
        /// True to also serve previews at `/proxy/<sandbox id>/<port>/`, for hosts without wildcard DNS. Their
        /// pages then share the origin of the API.
        pub path_proxy: bool = "false",
        /// Additional names, without ports, that a request's `Host` may have while the server
        /// listens on loopback. A request with any other `Host` gets 403.
        pub allowed_hosts: Vec<String> = "" as List(HOST_NAME),
        /// Origins whose pages may use the API, such as `https://app.example.com`; `*` for any origin not below
        /// `server.preview_domain`, while `auth.enabled` is true. `*` does not apply to WebSocket
        /// connections, and `config lint --production` rejects it.
        pub cors_allowed_origins: Vec<String> = "*" as List(ORIGIN),
        pub tls: Tls as Nested,
        /// Unix socket to listen on in addition to TCP; only this server's user can use it.
        pub unix_socket: Option<PathBuf>,
        /// Addresses or networks of proxies whose `X-Forwarded-For` is trusted, such as
        /// `10.0.0.0/8`.
        pub trusted_proxies: Vec<IpNet> = "",
    }
}

section! {
    /// Certificate for HTTPS: both files, or neither.
    pub struct Tls {
        /// PEM certificate chain for HTTPS; needs `server.tls.key_file`. Read again when it
        /// changes.
        pub cert_file: Option<PathBuf>,
        /// PEM private key of `server.tls.cert_file`.
        pub key_file: Option<PathBuf> as Optional(PRIVATE_FILE),
    }
}

section! {
    /// Database that holds all rows.
    pub struct Database {
        /// The SQLite file, as `sqlite://` and an absolute path. Unset:
        /// `sqlite://<data_dir>/tidebox.db`.
        pub path ("url"): PathBuf as DATABASE,
    }
}

section! {
    /// Metrics for Prometheus.
    #[derive(Copy)]
    pub struct Metrics {
        /// True to export series for each running sandbox: CPU time, memory, processes and bytes through its
        /// proxy, with its id as a label. Prometheus then keeps several series for every sandbox that ever ran.
        pub per_sandbox: bool = "false",
    }
}

section! {
    /// Level and format of the log.
    #[derive(Copy)]
    pub struct Logging {
        /// Least severe level that is written: `error`, `warn`, `info`, `debug` or `trace`.
        pub level: Level = "info",
        /// Format of a log line: `auto`, `pretty` or `json`; `auto` is pretty on a terminal and
        /// JSON otherwise.
        pub format: Format = "auto",
    }
}

words! {
    /// Severity of a log line.
    #[derive(PartialOrd, Ord)]
    pub enum Level {
        /// Conditions that need an operator.
        Error = "error",
        /// Conditions that may need an operator.
        Warn = "warn",
        /// Normal work of the server.
        Info = "info",
        /// Details of that work.
        Debug = "debug",
        /// Every line there is.
        Trace = "trace",
    }
}

words! {
    /// Format of a log line.
    pub enum Format {
        /// Pretty on a terminal, JSON otherwise.
        Auto = "auto",
        /// Lines for people to read.
        Pretty = "pretty",
        /// One JSON object a line.
        Json = "json",
    }
}
