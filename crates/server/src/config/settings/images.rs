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
        /// Condition under which a spawn asks the registry for its image: `missing` (if it is not
        /// here), `never` (it is here, or the spawn is refused) or `always`.
        pub pull: PullPolicy = "missing",
        /// The longest time that a spawn waits for its image. The pull goes on after that.
        pub pull_timeout: Duration = "5m",
        /// Size in MiB above which images that no box uses go, the longest unused first; 0 is no
        /// limit.
        pub max_mb: u64 = "0" as Number(0..=COUNT_MAX),
        /// The largest image that is taken, unpacked, in MiB.
        pub max_image_mb: u64 = "32768" as Number(1..=COUNT_MAX),
        /// The only registries that are asked, such as `docker.io` or `localhost:5000`. None: any.
        pub allowed_registries: Vec<String> = "" as List(REGISTRY),
        /// Docker's `config.json`, for its logins and credential helpers. Unset:
        /// `~/.docker/config.json`, if it is there.
        pub docker_config: Option<PathBuf> as Optional(LATER_FILE),
        /// Settings of single registries, by host and port.
        pub registries: BTreeMap<String, Registry> as Sections(BY_REGISTRY),
    }
}

section! {
    /// Settings of one registry.
    pub struct Registry {
        /// Hosts that are asked before this registry, in order, such as `mirror.example.com:5000`.
        pub mirrors: Vec<String> as OrEmpty(Optional(List(REGISTRY))),
        /// True to speak to this registry or mirror without TLS.
        pub plain_http: bool = "false",
        /// User to log in as; stronger than Docker's `config.json`.
        pub username: Option<String> as Optional(USER_NAME),
        /// Password or token of that user.
        pub password: Option<Secret> as SecretOrFile,
        /// PEM authority to trust for this registry besides the system's.
        pub ca_file: Option<PathBuf> as Optional(LATER_FILE),
    }
}

impl Configurable for PullPolicy {
    fn reader() -> impl Reader<Out = Self> {
        Words(&[("missing", PullPolicy::Missing), ("never", PullPolicy::Never), ("always", PullPolicy::Always)])
    }
}
