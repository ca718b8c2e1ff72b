//! How to set the provider up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use domain::StoreId;

use crate::images::{PullPolicy, RegistryConfig};

/// How to set the provider up. [`DockerConfig::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Whose boxes these are. Containers of others on the same Engine are not touched.
    pub store_id: StoreId,
    /// The Engine: a path or `unix://…`, or `tcp://host:port`. Empty for `DOCKER_HOST`
    /// (with `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH`, as Docker's own client has
    /// them), and `/var/run/docker.sock` if that is not set.
    pub socket: String,
    /// How to know an Engine on TCP, and be known by it; `None` for no TLS.
    pub tls: Option<DockerTls>,
    /// The OCI runtime: `runc`, `runsc`, `kata` …; empty for the Engine's default.
    pub runtime: String,
    /// Docker's network mode: `none` (the default), `bridge`, or the name of a
    /// network. `host` and `container:…` are refused, since they take a wall down.
    pub network_mode: String,
    /// A seccomp profile of Docker's form (JSON), in place of the Engine's own.
    pub seccomp_profile: Option<PathBuf>,
    /// The root of a box cannot be written; `/workspace`, `/tmp`, `/var/tmp` and `/run`
    /// are in its memory.
    pub read_only_rootfs: bool,
    /// The most processes of a box, whatever its size says; `None` for what that says.
    pub pids_limit: Option<u32>,
    /// All of a box, its agent too, runs as this user (`name`, `uid`, `uid:gid`), and
    /// nothing in it is root; empty for root with the capabilities below, and
    /// commands as the image's user.
    pub user: String,
    /// Capabilities, `CHOWN` or `CAP_CHOWN`, to take away from those that boxes have.
    pub dropped_caps: Vec<String>,
    /// Capabilities to add to those that boxes have.
    pub added_caps: Vec<String>,
    /// What is mounted in memory, with Docker's options: `/cache` → `size=64m`.
    pub tmpfs: BTreeMap<String, String>,
    /// When a spawn asks the registry for its image.
    pub pull: PullPolicy,
    /// The longest that a spawn waits for its image. The pull goes on after that.
    pub pull_timeout: Duration,
    /// Logins, by host and port of the registry. Mirrors, plain HTTP and
    /// certificates are settings of the Engine, which is who asks registries.
    pub registries: BTreeMap<String, RegistryConfig>,
    /// The only registries that the Engine is told to ask, by host and port; empty for any.
    pub allowed_registries: Vec<String>,
    /// Docker's own `config.json`, for its logins and credential helpers; `None` to
    /// read none.
    pub docker_config: Option<PathBuf>,
}

/// TLS of an Engine on TCP. All files are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerTls {
    /// Who signed the Engine's certificate.
    pub ca: PathBuf,
    /// Our certificate, for an Engine that asks for one.
    pub cert: Option<PathBuf>,
    /// The key of our certificate.
    pub key: Option<PathBuf>,
}

impl DockerConfig {
    /// What holds where nothing is configured.
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
