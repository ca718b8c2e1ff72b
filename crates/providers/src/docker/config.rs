//! Configuration of the provider.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use domain::StoreId;

use images::{PullPolicy, RegistryConfig};

/// Configuration of the provider. [`DockerConfig::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Store that the boxes belong to. Containers of others on the same Engine are not touched.
    pub store_id: StoreId,
    /// Address of the Engine: a path or `unix://…`, or `tcp://host:port`. Empty for `DOCKER_HOST`
    /// (with `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH`, as in Docker's own client), and for
    /// `/var/run/docker.sock` if that is not set.
    pub socket: String,
    /// Certificates for an Engine on TCP; `None` for no TLS.
    pub tls: Option<DockerTls>,
    /// OCI runtime: `runc`, `runsc`, `kata` …; empty for the Engine's default.
    pub runtime: String,
    /// Docker's network mode: `none` (the default), `bridge`, or the name of a network. `host`
    /// and `container:…` are refused, since they break the isolation.
    pub network_mode: String,
    /// Seccomp profile in Docker's format (JSON), in place of the Engine's own.
    pub seccomp_profile: Option<PathBuf>,
    /// True for boxes with a read-only root; `/workspace`, `/tmp`, `/var/tmp` and `/run` are in
    /// their memory.
    pub read_only_rootfs: bool,
    /// Limit on the processes of a box, which overrides that of its size; `None` for that of its
    /// size.
    pub pids_limit: Option<u32>,
    /// User that all of a box, its agent too, runs as (`name`, `uid`, `uid:gid`), with nothing in
    /// it root; empty for root with the capabilities below, and commands as the image's user.
    pub user: String,
    /// Capabilities, `CHOWN` or `CAP_CHOWN`, to remove from those that boxes have.
    pub dropped_caps: Vec<String>,
    /// Capabilities to add to those that boxes have.
    pub added_caps: Vec<String>,
    /// Paths mounted in memory, with Docker's options: `/cache` → `size=64m`.
    pub tmpfs: BTreeMap<String, String>,
    /// Policy for pulling the image of a spawn.
    pub pull: PullPolicy,
    /// Longest wait of a spawn for its image. The pull goes on after that.
    pub pull_timeout: Duration,
    /// Logins, by host and port of the registry. Mirrors, plain HTTP and certificates are
    /// settings of the Engine, which makes the requests.
    pub registries: BTreeMap<String, RegistryConfig>,
    /// Registries that the Engine may be asked to pull from, by host and port; empty for any.
    pub allowed_registries: Vec<String>,
    /// Docker's own `config.json`, for its logins and credential helpers; `None` to read none.
    pub docker_config: Option<PathBuf>,
}

/// TLS of an Engine on TCP. All files are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerTls {
    /// Certificate authority of the Engine's certificate.
    pub ca: PathBuf,
    /// Client certificate, for an Engine that asks for one.
    pub cert: Option<PathBuf>,
    /// Key of the client certificate.
    pub key: Option<PathBuf>,
}

impl DockerConfig {
    /// Returns the default configuration for a store.
    #[must_use]
    pub fn new(store_id: StoreId) -> DockerConfig {
        DockerConfig {
            store_id,
            socket: String::new(),
            tls: None,
            runtime: String::new(),
            network_mode: "none".to_owned(),
            seccomp_profile: None,
            read_only_rootfs: false,
            pids_limit: None,
            user: String::new(),
            dropped_caps: Vec::new(),
            added_caps: Vec::new(),
            tmpfs: BTreeMap::new(),
            pull: PullPolicy::Missing,
            pull_timeout: Duration::from_secs(300),
            registries: BTreeMap::new(),
            allowed_registries: Vec::new(),
            docker_config: None,
        }
    }
}
