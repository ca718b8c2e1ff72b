//! Settings of the providers that need a program of their own.

use std::path::PathBuf;

use providers::images::PullPolicy;

use super::{Auth, Enabled};

/// Containers of a Docker Engine, or of another program with its API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Docker {
    /// Condition under which it is offered.
    pub enabled: Enabled,
    /// Address of the Engine: `unix:///…`, `tcp://host:port`; `None` for `DOCKER_HOST`, then the
    /// usual place.
    pub socket: Option<String>,
    /// Files for TLS with an Engine on TCP.
    pub tls: DockerTls,
    /// The runtime that it starts containers with; `None` for its default.
    pub runtime: Option<String>,
    /// `none`, `bridge`, or the name of a network; never that of the host.
    pub network_mode: String,
    /// File of a seccomp profile (JSON) in place of the Engine's own.
    pub seccomp_profile: Option<PathBuf>,
    /// True if the image's files are read-only.
    pub read_only_rootfs: bool,
    /// The most processes in a box; `None` for `defaults.pids`.
    pub pids_limit: Option<u32>,
    /// User that commands run as; `None` for the image's user.
    pub user: Option<String>,
    /// Capabilities that containers do not get.
    pub dropped_caps: Vec<String>,
    /// Capabilities that containers get besides the Engine's default ones.
    pub added_caps: Vec<String>,
    /// Mounts in memory: `path` or `path:options`.
    pub tmpfs: Vec<String>,
    /// Condition under which a spawn has the Engine ask the registry.
    pub pull: PullPolicy,
}

/// Files for TLS with an Engine on TCP.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DockerTls {
    /// The authority that signed the Engine's certificate, PEM.
    pub ca_file: Option<PathBuf>,
    /// Certificate of this server as a client, PEM.
    pub cert_file: Option<PathBuf>,
    /// Private key of `cert_file`, PEM.
    pub key_file: Option<PathBuf>,
}

impl Default for Docker {
    fn default() -> Self {
        Self {
            enabled: Enabled::Auto,
            socket: None,
            tls: DockerTls::default(),
            runtime: None,
            network_mode: String::new(),
            seccomp_profile: None,
            read_only_rootfs: false,
            pids_limit: None,
            user: None,
            dropped_caps: Vec::new(),
            added_caps: Vec::new(),
            tmpfs: Vec::new(),
            pull: PullPolicy::Missing,
        }
    }
}

/// Boxes made with `ptrace`, without privileges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proot {
    /// Condition under which it is offered.
    pub enabled: Enabled,
    /// The program; `None` for the one on the `PATH`.
    pub binary: Option<PathBuf>,
}

impl Proot {
    /// Returns whether it may be offered. Its boxes are on the host's network, where they reach
    /// an API that asks for no key, so without authentication it must be enabled explicitly.
    #[must_use]
    pub fn is_offered(&self, auth: &Auth) -> bool {
        match self.enabled {
            Enabled::Auto => auth.enabled,
            Enabled::True => true,
            Enabled::False => false,
        }
    }
}

impl Default for Proot {
    fn default() -> Self {
        Self { enabled: Enabled::Auto, binary: None }
    }
}
