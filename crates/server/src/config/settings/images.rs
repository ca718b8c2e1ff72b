//! Settings of the image store and of registries.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use providers::images::PullPolicy;

use super::super::Secret;

/// Image store: pulls, sizes and registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// Condition under which a spawn asks the registry.
    pub pull: PullPolicy,
    /// The longest that a spawn waits for its image.
    pub pull_timeout: Duration,
    /// Size of the store, in mebibytes, above which unused images are removed; 0 for no limit.
    pub max_mb: u64,
    /// The largest image that is taken, unpacked, in mebibytes.
    pub max_image_mb: u64,
    /// The only registries that are asked, by host and port; empty for any.
    pub allowed_registries: Vec<String>,
    /// Path of Docker's `config.json`; `None` where there is none.
    pub docker_config: Option<PathBuf>,
    /// Settings of single registries, by host and port.
    pub registries: BTreeMap<String, Registry>,
}

/// Settings of one registry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registry {
    /// Hosts that are asked first, in order.
    pub mirrors: Vec<String>,
    /// True to connect without TLS.
    pub plain_http: bool,
    /// User name that goes with `password`.
    pub username: Option<String>,
    /// Password or token of `username`.
    pub password: Option<Secret>,
    /// File from which `password` was read, if any.
    pub password_file: Option<PathBuf>,
    /// File of a certificate (PEM) to trust besides the system's.
    pub ca_file: Option<PathBuf>,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            pull: PullPolicy::Missing,
            pull_timeout: Duration::ZERO,
            max_mb: 0,
            max_image_mb: 0,
            allowed_registries: Vec::new(),
            docker_config: None,
            registries: BTreeMap::new(),
        }
    }
}
