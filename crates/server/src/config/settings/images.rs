//! Settings of the image store and of registries.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use images::PullPolicy;

use super::super::declare::{SecretOrFile, Sections, section};
use super::super::read::{COUNT_MAX, Configurable, LATER_FILE, List, Number, Optional, OrEmpty, Reader, Words};
use super::super::secret::Secret;
use super::super::text::{BY_REGISTRY, REGISTRY, USER_NAME};

section! {
    /// Image store: pulls, sizes and registries.
    pub struct Images {
        /// Pull policy for the image of a spawn: `missing` (if the image is not stored
        /// here), `never` (if it is not stored here, the spawn is refused) or `always`.
        pub pull: PullPolicy = "missing",
        /// Maximum time that a spawn waits for its image. The pull continues after that.
        pub pull_timeout: Duration = "5m",
        /// Size in MiB above which images that no box uses are removed, least recently used first;
        /// 0 means no limit.
        pub max_mb: u64 = "0" as Number(0..=COUNT_MAX),
        /// Maximum unpacked size of an image in MiB.
        pub max_image_mb: u64 = "32768" as Number(1..=COUNT_MAX),
        /// Registries that images may come from, such as `docker.io` or `localhost:5000`. Empty:
        /// any.
        pub allowed_registries: Vec<String> = "" as List(REGISTRY),
        /// Docker's `config.json`, for its logins and credential helpers. Unset:
        /// `~/.docker/config.json`, if it exists.
        pub docker_config: Option<PathBuf> as Optional(LATER_FILE),
        /// Settings of individual registries, by host and port.
        pub registries: BTreeMap<String, Registry> as Sections(BY_REGISTRY),
    }
}

section! {
    /// Settings of one registry.
    pub struct Registry {
        /// Mirrors to try before this registry, in order, such as `mirror.example.com:5000`.
        pub mirrors: Vec<String> as OrEmpty(Optional(List(REGISTRY))),
        /// True to connect to this registry or mirror without TLS.
        pub plain_http: bool = "false",
        /// User to log in as; overrides Docker's `config.json`.
        pub username: Option<String> as Optional(USER_NAME),
        /// Password or token of that user.
        pub password: Option<Secret> as SecretOrFile,
        /// PEM authority to trust for this registry in addition to the system's.
        pub ca_file: Option<PathBuf> as Optional(LATER_FILE),
    }
}

impl Configurable for PullPolicy {
    fn reader() -> impl Reader<Out = Self> {
        Words(&[("missing", PullPolicy::Missing), ("never", PullPolicy::Never), ("always", PullPolicy::Always)])
    }
}
