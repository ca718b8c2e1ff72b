//! How to set the store up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::Room;

/// How to set the store up.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// The store's own folder, `<data>/images`.
    pub dir: PathBuf,
    /// When a spawn asks the registry.
    pub pull: PullPolicy,
    /// The longest that a spawn waits for its image. The pull goes on after that.
    pub pull_timeout: Duration,
    /// Images that nobody uses go, the longest unused first, when the store takes
    /// more than so many bytes; 0 for no limit.
    pub bytes_max: u64,
    /// What is left free of the disk: no pull begins that would take it, and what comes
    /// to it ends.
    pub reserve: Reserve,
    /// The largest image that is taken, unpacked, in bytes.
    pub image_bytes_max: u64,
    /// How long a registry may be silent in the middle of an answer.
    pub stall_timeout: Duration,
    /// What is to be known of registries, by host and port: `docker.io`, `localhost:5000`.
    pub registries: BTreeMap<String, RegistryConfig>,
    /// The only registries that are asked, by host and port; empty for any. Mirrors
    /// of these need not be named.
    pub allowed_registries: Vec<String>,
    /// Docker's own `config.json`, for its logins and credential helpers; `None` to
    /// read none.
    pub docker_config: Option<PathBuf>,
}

impl ImagesConfig {
    /// A store in `dir`, with the defaults of everything else.
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
    /// In bytes.
    pub bytes: u64,
    /// In inodes, where the file system counts them.
    pub inodes: u64,
}

impl Reserve {
    /// Nothing: images may take all of it.
    pub const NONE: Reserve = Reserve { bytes: 0, inodes: 0 };

    /// Says whether `room` is more than this.
    #[must_use]
    pub fn is_free(&self, room: Room) -> bool {
        room.bytes > self.bytes && room.entries.is_none_or(|left| left > self.inodes)
    }
}

/// When a spawn asks the registry for its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// If the image is not here.
    Missing,
    /// Never: the image is here or the spawn is refused.
    Never,
    /// Each time; what is here already is not downloaded again.
    Always,
}

/// What is to be known of one registry.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// Hosts that are asked first, in order, with the same paths.
    pub mirrors: Vec<String>,
    /// Spoken to without TLS.
    pub plain_http: bool,
    /// User name; with it goes `password`. A `password` without a name is a token that
    /// the registry itself takes.
    pub username: Option<String>,
    /// Password or token.
    pub password: Option<SecretString>,
    /// A certificate (PEM) to trust besides the system's.
    pub ca_file: Option<PathBuf>,
}
