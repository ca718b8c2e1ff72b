//! Configuration of the image store.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use host_disk::Room;
use secrecy::SecretString;

/// Settings of the image store.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// Folder of the store, `<data>/images`.
    pub dir: PathBuf,
    /// Policy of a spawn for asking the registry.
    pub pull: PullPolicy,
    /// Longest wait of a spawn for its image. The pull continues after that.
    pub pull_timeout: Duration,
    /// Size of the store, in bytes, above which unused images are removed, the longest unused
    /// first; 0 for no limit.
    pub bytes_max: u64,
    /// Part of the disk that images leave free. A pull that would need it is refused; one that
    /// reaches it ends.
    pub reserve: Reserve,
    /// Largest accepted image, in bytes, as downloaded and unpacked.
    pub image_bytes_max: u64,
    /// Longest silence of a registry in the middle of an answer.
    pub stall_timeout: Duration,
    /// Settings of registries, by host and port: `docker.io`, `localhost:5000`.
    pub registries: BTreeMap<String, RegistryConfig>,
    /// Registries that may be asked, by host and port; empty for any. Their mirrors need not be
    /// listed.
    pub allowed_registries: Vec<String>,
    /// Docker's own `config.json`, read for logins and credential helpers; `None` to read none.
    pub docker_config: Option<PathBuf>,
}

impl ImagesConfig {
    /// Returns the settings for a store in `dir`, with defaults for everything else.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            pull: PullPolicy::Missing,
            pull_timeout: Duration::from_secs(120),
            bytes_max: 0,
            reserve: Reserve::NONE,
            image_bytes_max: 16 << 30,
            stall_timeout: Duration::from_secs(30),
            registries: BTreeMap::new(),
            allowed_registries: Vec::new(),
            docker_config: None,
        }
    }
}

/// Part of a disk that images leave free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    /// Bytes that stay free.
    pub bytes: u64,
    /// Inodes that stay free, where the file system counts them.
    pub inodes: u64,
}

impl Reserve {
    /// Empty reserve: images may fill the disk.
    pub const NONE: Reserve = Reserve { bytes: 0, inodes: 0 };

    /// Returns whether `room` is more than this.
    #[must_use]
    pub fn is_free(&self, room: Room) -> bool {
        room.bytes > self.bytes && room.entries.is_none_or(|left| left > self.inodes)
    }
}

/// Policy of a spawn for asking the registry for its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Asked only if the image is not in the store.
    Missing,
    /// Never asked: if the image is not in the store, the spawn is refused.
    Never,
    /// Asked on each spawn; what is in the store is not downloaded again.
    Always,
}

/// Settings of one registry.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// Hosts that are asked first, in order, with the same paths.
    pub mirrors: Vec<String>,
    /// True to use HTTP without TLS.
    pub plain_http: bool,
    /// User name that belongs to `password`. A `password` without a name is a token that the
    /// registry itself takes.
    pub username: Option<String>,
    /// Password, or a token if `username` is absent.
    pub password: Option<SecretString>,
    /// PEM file with certificates to trust besides the system's.
    pub ca_file: Option<PathBuf>,
}
