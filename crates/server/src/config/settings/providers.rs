//! Settings of the providers.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use images::PullPolicy;
use serde_json::{Value as Json, json};

use super::super::declare::{Nested, SecretOrFile, section};
use super::super::read::{
    COUNT_MAX, Configurable, Kind, LATER_FILE, LATER_PRIVATE_FILE, List, Number, Optional, OrEmpty, Read, Reader,
    Words, flag, must, text_of,
};
use super::super::secret::Secret;
use super::super::text::{
    CAPABILITY, CAPABILITY_OR_ALL, CGROUP, ENGINE, LABEL, NETWORK_MODE, SUBIDS, Special, TMPFS, URL, User, is_label,
};
use super::super::tree::Value;
use super::access::Auth;
use super::limits::PIDS;

/// Bounds on the mebibytes of a drive in a second.
const DRIVE_MB: RangeInclusive<u32> = 0..=1_000_000;
/// Bounds on the operations of a drive in a second.
const DRIVE_OPERATIONS: RangeInclusive<u32> = 0..=1_000_000_000;

section! {
    /// Providers that run the boxes.
    pub struct Providers {
        /// Provider of a spawn that names none: `auto`, `native`, `docker`, `firecracker`, `proot`,
        /// `mock` or the name of custom. `auto` is the first healthy of native, docker, proot.
        pub default: DefaultProvider = "auto",
        pub native: Native as Nested,
        pub docker: Docker as Nested,
        pub proot: Proot as Nested,
        pub mock: Mock as Nested,
        pub firecracker: Firecracker as Nested,
        pub e2b: Absent as Nested,
        pub custom: Custom as Nested,
    }
}

/// Provider of a request that names none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultProvider {
    /// The first of native, docker and proot that is healthy.
    Auto,
    /// Provider of this name.
    Named(String),
}

impl Configurable for DefaultProvider {
    fn reader() -> impl Reader<Out = Self> {
        Special {
            read: |value, _| {
                // The check of the whole configuration finds out whether there is one of that name.
                const BE: &str = "auto, native, docker, firecracker, proot, mock or the name of custom";
                match text_of(value, BE)? {
                    "auto" => Ok(DefaultProvider::Auto),
                    "e2b" => Err(format!("e2b is not supported by this version of Tidebox; write {BE}")),
                    name if is_label(name) => Ok(DefaultProvider::Named(name.to_owned())),
                    _ => must(BE, value),
                }
            },
        }
    }
}

/// Condition under which a provider is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enabled {
    /// Offered if it can work on this host.
    Auto,
    /// Offered always, and shown as unhealthy while it is.
    True,
    /// Never offered, even if it can work on this host.
    False,
}

impl Enabled {
    /// Returns what is set; `None` if the host decides.
    pub fn forced(self) -> Option<bool> {
        match self {
            Enabled::Auto => None,
            Enabled::True => Some(true),
            Enabled::False => Some(false),
        }
    }
}

/// `auto`, `true` or `false`, of which a setting keeps what `T` can state.
struct Offer<T>(fn(Enabled) -> Read<T>);

/// Reader of whether a provider is offered that `auto` does not offer.
const ONLY_IF_TRUE: Offer<bool> = Offer(|enabled| Ok(enabled == Enabled::True));

/// Reader of whether a provider is offered that this version does not have.
const NEVER: Offer<bool> = Offer(|enabled| match enabled {
    Enabled::True => Err("this version of Tidebox does not have this provider; write false".to_owned()),
    Enabled::Auto | Enabled::False => Ok(false),
});

impl<T: 'static> Kind for Offer<T> {
    fn schema(&self) -> Json {
        json!({ "enum": ["auto", true, false] })
    }

    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        flag(text)
    }
}

impl<T: 'static> Reader for Offer<T> {
    type Out = T;

    fn read(&self, value: &Value, home: Option<&Path>) -> Read<T> {
        let words = Words(&[("auto", Enabled::Auto), ("true", Enabled::True), ("false", Enabled::False)]);
        let enabled = if let Value::Bool(flag) = value {
            if *flag { Enabled::True } else { Enabled::False }
        } else {
            words.read(value, home)?
        };
        (self.0)(enabled)
    }
}

impl Configurable for Enabled {
    fn reader() -> impl Reader<Out = Self> {
        Offer(Ok)
    }
}

section! {
    /// Boxes made of the kernel's own namespaces.
    pub struct Native {
        /// Condition under which it is offered: `auto`, where the host can do it; `true`, always,
        /// and shown as unhealthy where the host cannot; `false`, never.
        pub enabled: Enabled = "auto",
        /// Host user and group ids for boxes, as `first:count`, both at least 65536; a box takes
        /// 65536 of them. Two servers on one host need different ones. Unset:
        /// `1073741824:536870912`.
        pub subids: Option<(u32, u32)> as Optional(SUBIDS),
        /// Control group below which boxes get theirs, from the root of the hierarchy. Unset: the
        /// server's own.
        pub cgroup_parent: Option<String> as Optional(CGROUP),
        /// True to lead every connection out of a box to the proxy of the box, so that programs that
        /// know of no proxy get out as well, by the same policy. The server has to run as root, with
        /// `CAP_BPF` and `CAP_NET_ADMIN`; the provider is unhealthy where that cannot be.
        pub transparent_egress: bool = "false",
        /// True to write files of a box to the disk when a program asks for that (`fsync`, `sync`), as on
        /// the host. By default such calls do nothing, because a box keeps nothing beyond its end. For
        /// boxes that are made from then on.
        pub fsync: bool = "false",
    }
}

section! {
    /// Containers of a Docker Engine, or of another program with its API.
    pub struct Docker {
        /// Condition under which it is offered: `auto`, where an Engine answers; `true`, always;
        /// `false`, never.
        pub enabled: Enabled = "auto",
        /// Address of the Engine: a path, `unix:///path` or `tcp://host:port`. Unset:
        /// `DOCKER_HOST`, then the usual place.
        pub socket: Option<String> as Optional(ENGINE),
        pub tls: DockerTls as Nested,
        /// Runtime of the containers, such as `runc`, `runsc` or `kata`. Unset: the Engine's
        /// default.
        pub runtime: Option<String> as Optional(LABEL),
        /// Network of the boxes: `none` (loopback alone), `bridge`, or the name of a network of the
        /// Engine; never that of the host or of a container.
        pub network_mode: String = "none" as NETWORK_MODE,
        /// File (JSON) of a seccomp profile in place of the Engine's own.
        pub seccomp_profile: Option<PathBuf> as Optional(LATER_FILE),
        /// True to make the image's files read-only; what may be written is in memory.
        pub read_only_rootfs: bool = "false",
        /// Maximum number of processes and threads in a box, whatever `pids` a spawn asks for.
        pub pids_limit: Option<u32> as Optional(Number(PIDS)),
        /// User of the boxes: `name`, `uid`, `name:group` or `uid:gid`. Unset: the image's.
        pub user: Option<String> as Optional(User),
        /// Capabilities that boxes do not get, such as `NET_RAW`; `ALL` for all of them.
        pub dropped_caps: Vec<String> = "" as List(CAPABILITY_OR_ALL),
        /// Capabilities that boxes get in addition to the default ones of this provider. Dropped ones
        /// do not count.
        pub added_caps: Vec<String> = "" as List(CAPABILITY),
        /// Folders in memory, such as `/tmp` or `/run:size=64m`.
        pub tmpfs: Vec<String> = "" as List(TMPFS),
        /// Condition under which a spawn has the Engine ask the registry: `missing`, `never` or
        /// `always`.
        pub pull: PullPolicy = "missing",
    }
}

section! {
    /// Files for TLS with an Engine on TCP.
    pub struct DockerTls {
        /// PEM authority that signed the certificate of an Engine on `tcp://`.
        pub ca_file: Option<PathBuf> as Optional(LATER_FILE),
        /// PEM certificate that is shown to it; needs `providers.docker.tls.key_file`.
        pub cert_file: Option<PathBuf> as Optional(LATER_FILE),
        /// PEM private key of `providers.docker.tls.cert_file`.
        pub key_file: Option<PathBuf> as Optional(LATER_PRIVATE_FILE),
    }
}

section! {
    /// Virtual machines of Firecracker, each with a kernel of its own.
    pub struct Firecracker {
        /// Condition under which it is offered: `auto`, where `providers.firecracker.kernel` is set and
        /// a machine boots; `true`, always, and shown as unhealthy while none boots; `false`, never.
        pub enabled: Enabled = "auto",
        /// The `firecracker` program, version 1.16 or later. Unset: the one on the `PATH`.
        pub binary: Option<PathBuf>,
        /// Kernel of the guests: one that a distribution installed, such as `/boot/vmlinuz-6.1.0-56-amd64`,
        /// or an uncompressed ELF file.
        pub kernel: Option<PathBuf> as Optional(LATER_FILE),
        /// Folder of the modules of that kernel. Unset: `/lib/modules/` and its release, and none for an
        /// ELF file.
        pub modules: Option<PathBuf>,
        pub jailer: FirecrackerJailer as Nested,
        /// The longest time in which a guest boots. A processor's own virtualization takes a tenth of a
        /// second, emulation a minute.
        pub boot_timeout: Duration = "30s",
        /// MiB that snapshots of images may take on disk. The first machine of an image and a size boots, and
        /// is kept as the snapshot from which later ones are made. 0: every machine boots.
        pub image_snapshots_mb: u64 = "8192" as Number(0..=COUNT_MAX),
        /// Host user ids for the machines of a server that runs as root, as `first:count`, both at least
        /// 65536; a machine takes 65536 of them. Two servers on one host need different ones. Unset:
        /// `2147483648:536870912`.
        pub subids: Option<(u32, u32)> as Optional(SUBIDS),
        /// Control group below which machines get theirs, from the root of the hierarchy. Unset: the
        /// server's own.
        pub cgroup_parent: Option<String> as Optional(CGROUP),
        pub drive: FirecrackerDrive as Nested,
    }
}

section! {
    /// Firecracker's own sandbox around a machine.
    pub struct FirecrackerJailer {
        /// Condition under which machines run in the jailer, as a user of their own and in a root of
        /// their own: `auto`, where the server runs as root; `true`, always, which needs root; `false`,
        /// never.
        pub enabled: Enabled = "auto",
        /// The `jailer` program, of the same release as Firecracker. Unset: the one on the `PATH`.
        pub binary: Option<PathBuf>,
    }
}

section! {
    /// Limits on each of the two drives of a machine, enforced by Firecracker.
    #[derive(Copy)]
    pub struct FirecrackerDrive {
        /// The most mebibytes that are read and written in a second; 0 for no limit.
        pub mb_per_second: u32 = "0" as Number(DRIVE_MB),
        /// The most reads and writes in a second; 0 for no limit.
        pub operations_per_second: u32 = "0" as Number(DRIVE_OPERATIONS),
    }
}

section! {
    /// Boxes made with `ptrace`, without privileges.
    pub struct Proot {
        /// Condition under which it is offered: `auto`, where there is a `proot` program and
        /// `auth.enabled` is true; `true`, always; `false`, never. It isolates little, so code in
        /// its boxes reaches this API; `true` offers it without a key all the same, and warns.
        pub enabled: Enabled = "auto",
        /// The `proot` program. Unset: the one on the `PATH`.
        pub binary: Option<PathBuf>,
    }
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

section! {
    /// Test double, which isolates nothing.
    #[derive(Copy)]
    pub struct Mock {
        /// True to offer the test double, which isolates nothing; `auto` counts as `false`.
        pub enabled: bool = "false" as ONLY_IF_TRUE,
    }
}

section! {
    /// A provider that this version does not have.
    pub struct Absent {
        /// `false`, or `auto`, which is `false`: this version does not have the provider.
        pub enabled: bool = "false" as NEVER,
    }
}

section! {
    /// Another service that speaks this API.
    pub struct Custom {
        /// True to offer another service that speaks this API; `auto` counts as `false`.
        pub enabled: bool = "false" as ONLY_IF_TRUE,
        /// Name of the provider in this server's API.
        pub name: String = "custom" as LABEL,
        /// Base URL of the service, such as `https://boxes.example.com`.
        pub base_url: String as OrEmpty(Optional(URL)),
        /// Key that its API asks for.
        pub api_key: Option<Secret> as SecretOrFile,
        /// PEM file of the authorities that may vouch for it, instead of the system's.
        pub ca_file: Option<PathBuf>,
        /// Provider that is requested from it. Unset: its default.
        pub remote_provider: Option<String> as Optional(LABEL),
        /// The longest time until one of its answers begins.
        pub timeout: Duration = "30s",
    }
}
