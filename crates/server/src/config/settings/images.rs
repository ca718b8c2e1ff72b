//! What the operator may set of images.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use providers::images::PullPolicy;

use super::super::Secret;

/// The image store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// When a spawn asks the registry.
    pub pull: PullPolicy,
    /// The longest that a spawn waits for its image.
    pub pull_timeout: Duration,
    /// Unused images go when the store takes more, in mebibytes; 0 for no limit.
    pub max_mb: u64,
    /// The largest image that is taken, unpacked, in mebibytes.
    pub max_image_mb: u64,
    /// The only registries that are asked, by host and port; empty for any.
    pub allowed_registries: Vec<String>,
    /// Docker's own `config.json`; `None` where there is none.
    pub docker_config: Option<PathBuf>,
    /// What is to be known of registries, by host and port.
    pub registries: BTreeMap<String, Registry>,
}

/// What is to be known of one registry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registry {
    /// Hosts that are asked first, in order.
    pub mirrors: Vec<String>,
    /// Spoken to without TLS.
    pub plain_http: bool,
    /// User name, with which `password` goes.
    pub username: Option<String>,
    /// Password or token.
    pub password: Option<Secret>,
    /// Where `password` was read from, if from a file.
    pub password_file: Option<PathBuf>,
    /// A certificate (PEM) to trust besides the system's.
    pub ca_file: Option<PathBuf>,
}

impl Default for Images {
    /// Nothing set.
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
