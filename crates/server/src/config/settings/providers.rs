//! Settings of the providers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::Resources;
use images::PullPolicy;
use serde_json::{Value as Json, json};

use super::super::declare::{Nested, SecretOrFile, Sections, section};
use super::super::read::{
    COUNT_MAX, Configurable, Kind, LATER_FILE, LATER_PRIVATE_FILE, List, Number, Optional, OrEmpty, Read, Reader,
    Words, flag, must, text_of,
};
use super::super::secret::Secret;
use super::super::text::{
    BY_IMAGE, CAPABILITY, CAPABILITY_OR_ALL, CGROUP, DOMAIN, ENGINE, IMAGE, LABEL, NETWORK_MODE, SUBIDS, Special,
    TMPFS, URL, USER_NAME, User, is_label,
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
        /// Default provider of a spawn: `auto`, `native`, `docker`, `firecracker`, `proot`, `mock`,
        /// `e2b` or the name of custom. `auto` is the first healthy one of native, docker and proot.
        pub default: DefaultProvider = "auto",
        pub native: Native as Nested,
        pub docker: Docker as Nested,
        pub proot: Proot as Nested,
        pub mock: Mock as Nested,
        pub firecracker: Firecracker as Nested,
        pub e2b: E2b as Nested,
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
                const BE: &str = "auto, native, docker, firecracker, proot, mock, e2b or the name of custom";
                match text_of(value, BE)? {
                    "auto" => Ok(DefaultProvider::Auto),
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
    /// Boxes made from Linux namespaces.
    pub struct Native {
        /// Offer of the provider: `auto`, if the host supports it; `true`, always, and shown
        /// as unhealthy if the host does not; `false`, never.
        pub enabled: Enabled = "auto",
        /// Host user and group ids for boxes, as `first:count`, both at least 65536; each box uses
        /// 65536 of them. Two servers on one host need different ranges. Unset:
        /// `1073741824:536870912`.
        pub subids: Option<(u32, u32)> as Optional(SUBIDS),
        /// Parent control group of the boxes, as a path from the root of the hierarchy. Unset: the
        /// server's own.
        pub cgroup_parent: Option<String> as Optional(CGROUP),
        /// True to send every connection out of a box through its proxy, so that programs without proxy support
        /// can connect too, under the same policy. The server must run as root with `CAP_BPF` and
        /// `CAP_NET_ADMIN`; the provider is unhealthy where this is not possible.
        pub transparent_egress: bool = "false",
        /// True to write the files of a box to disk when a program calls `fsync` or `sync`, as on the host. By
        /// default such calls do nothing, because files do not outlive their box. Applies to boxes that are
        /// made after the change.
        pub fsync: bool = "false",
    }
}

section! {
    /// Containers of a Docker Engine, or of another program with its API.
    pub struct Docker {
        /// Offer of the provider: `auto`, if an Engine answers; `true`, always; `false`,
        /// never.
        pub enabled: Enabled = "auto",
        /// Address of the Engine: a path, `unix:///path` or `tcp://host:port`. Unset:
        /// `DOCKER_HOST`, then the usual path.
        pub socket: Option<String> as Optional(ENGINE),
        pub tls: DockerTls as Nested,
        /// Runtime of the containers, such as `runc`, `runsc` or `kata`. Unset: the Engine's
        /// default.
        pub runtime: Option<String> as Optional(LABEL),
        /// Network of the boxes: `none` (loopback alone), `bridge`, or the name of a network of the
        /// Engine; never the network of the host or of a container.
        pub network_mode: String = "none" as NETWORK_MODE,
        /// JSON file with a seccomp profile to use instead of the Engine's own.
        pub seccomp_profile: Option<PathBuf> as Optional(LATER_FILE),
        /// True to make the image's files read-only; writable folders are in memory.
        pub read_only_rootfs: bool = "false",
        /// Maximum number of processes and threads in a box, whatever `pids` a spawn asks for.
        pub pids_limit: Option<u32> as Optional(Number(PIDS)),
        /// User of the boxes: `name`, `uid`, `name:group` or `uid:gid`. Unset: the image's.
        pub user: Option<String> as Optional(User),
        /// Capabilities that boxes do not get, such as `NET_RAW`; `ALL` for all of them.
        pub dropped_caps: Vec<String> = "" as List(CAPABILITY_OR_ALL),
        /// Capabilities that boxes get in addition to the provider's defaults. Dropped capabilities are not
        /// added.
        pub added_caps: Vec<String> = "" as List(CAPABILITY),
        /// Folders in memory, such as `/tmp` or `/run:size=64m`.
        pub tmpfs: Vec<String> = "" as List(TMPFS),
        /// Pull policy of the Engine for the image of a spawn: `missing`, `never` or
        /// `always`.
        pub pull: PullPolicy = "missing",
    }
}

section! {
    /// Files for TLS with an Engine on TCP.
    pub struct DockerTls {
        /// PEM authority that signed the certificate of an Engine on `tcp://`.
        pub ca_file: Option<PathBuf> as Optional(LATER_FILE),
        /// PEM client certificate for that Engine; needs `providers.docker.tls.key_file`.
        pub cert_file: Option<PathBuf> as Optional(LATER_FILE),
        /// PEM private key of `providers.docker.tls.cert_file`.
        pub key_file: Option<PathBuf> as Optional(LATER_PRIVATE_FILE),
    }
}

section! {
    /// Firecracker virtual machines, each with its own kernel.
    pub struct Firecracker {
        /// Offer of the provider: `auto`, if `providers.firecracker.kernel` is set and a machine boots;
        /// `true`, always, and shown as unhealthy while no machine boots; `false`, never.
        pub enabled: Enabled = "auto",
        /// The `firecracker` program, version 1.16 or later. Unset: the one on the `PATH`.
        pub binary: Option<PathBuf>,
        /// Guest kernel: one that a distribution installed, such as `/boot/vmlinuz-6.1.0-56-amd64`, or an
        /// uncompressed ELF file.
        pub kernel: Option<PathBuf> as Optional(LATER_FILE),
        /// Folder with the modules of that kernel. Unset: `/lib/modules/<release>`, or none for an ELF file.
        pub modules: Option<PathBuf>,
        pub jailer: FirecrackerJailer as Nested,
        /// Maximum time for a guest to boot. Hardware virtualization takes a tenth of a second, emulation a
        /// minute.
        pub boot_timeout: Duration = "30s",
        /// Disk space in MiB for snapshots of images. The first machine of an image and size boots and becomes
        /// the snapshot that later machines are made from. 0: every machine boots.
        pub image_snapshots_mb: u64 = "8192" as Number(0..=COUNT_MAX),
        /// Host user ids for the machines of a server that runs as root, as `first:count`, both at least 65536;
        /// each machine uses 65536 of them. Two servers on one host need different ranges. Unset:
        /// `2147483648:536870912`.
        pub subids: Option<(u32, u32)> as Optional(SUBIDS),
        /// Parent control group of the machines, as a path from the root of the hierarchy. Unset: the server's
        /// own.
        pub cgroup_parent: Option<String> as Optional(CGROUP),
        pub drive: FirecrackerDrive as Nested,
    }
}

section! {
    /// Firecracker's own sandbox around a machine.
    pub struct FirecrackerJailer {
        /// Use of the jailer, which gives each machine its own user and root directory: `auto`, if the server
        /// runs as root; `true`, always, which needs root; `false`, never.
        pub enabled: Enabled = "auto",
        /// The `jailer` program, of the same release as Firecracker. Unset: the one on the `PATH`.
        pub binary: Option<PathBuf>,
    }
}

section! {
    /// Limits on each of the two drives of a machine, enforced by Firecracker.
    #[derive(Copy)]
    pub struct FirecrackerDrive {
        /// Maximum mebibytes read and written per second; 0 for no limit.
        pub mb_per_second: u32 = "0" as Number(DRIVE_MB),
        /// Maximum number of reads and writes per second; 0 for no limit.
        pub operations_per_second: u32 = "0" as Number(DRIVE_OPERATIONS),
    }
}

section! {
    /// Boxes made with `ptrace`, without privileges.
    pub struct Proot {
        /// Offer of the provider: `auto`, if a `proot` program is installed and
        /// `auth.enabled` is true; `true`, always; `false`, never. It isolates little, so code in
        /// its boxes can reach this API; `true` offers it even without a key, and warns.
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
    /// Sandboxes of the E2B cloud, or of another service with its API, such as another Tidebox.
    pub struct E2b {
        /// True to offer sandboxes of an E2B account, which cost money; `auto` counts as `false`.
        pub enabled: bool = "false" as ONLY_IF_TRUE,
        /// API key of the account.
        pub api_key: Option<Secret> as SecretOrFile,
        /// Domain of the service, with a port if it is not 443: `api.<domain>` is its API, and each sandbox has
        /// a host name below it.
        pub domain: String = "e2b.app" as DOMAIN,
        /// Base URL of the API. Unset: `https://api.<domain>`.
        pub base_url: Option<String> as Optional(URL),
        /// Base URL of all sandboxes, for a service without wildcard host names. Unset: host names below the
        /// domain.
        pub sandbox_url: Option<String> as Optional(URL),
        /// PEM file of the authorities to trust for the service, instead of the system's.
        pub ca_file: Option<PathBuf>,
        /// Maximum time until one of its responses begins.
        pub timeout: Duration = "30s",
        /// User that commands and file operations act as in a sandbox. `/workspace` belongs to it.
        pub user: String = "root" as USER_NAME,
        /// Maximum lifetime that the account's plan allows a sandbox.
        pub max_lifetime: Duration = "24h",
        /// Templates by the name of the image in a spawn. Any other image is the name of a template itself.
        pub templates: BTreeMap<String, E2bTemplate> as Sections(BY_IMAGE),
    }
}

section! {
    /// Template that sandboxes of an image are made from.
    pub struct E2bTemplate {
        /// Name or id of the template in the account. Unset: the name of the image.
        pub template: Option<String> as Optional(IMAGE),
        /// Memory of the template's sandboxes in MiB. A spawn may ask for exactly this `memory_mb`. Unset: a
        /// spawn may not name a size.
        pub memory_mb: Option<u32> as Optional(Number(Resources::MEMORY_MB.0..=Resources::MEMORY_MB.1)),
        /// Virtual CPUs of the template's sandboxes, likewise.
        pub vcpus: Option<u32> as Optional(Number(Resources::VCPUS.0..=Resources::VCPUS.1)),
        /// Disk of the template's sandboxes in MiB, likewise.
        pub disk_mb: Option<u32> as Optional(Number(1..=Resources::DISK_MB.1)),
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
        /// Key that its API requires.
        pub api_key: Option<Secret> as SecretOrFile,
        /// PEM file of the authorities to trust for it, instead of the system's.
        pub ca_file: Option<PathBuf>,
        /// Provider to request from it. Unset: its default.
        pub remote_provider: Option<String> as Optional(LABEL),
        /// Maximum time until one of its responses begins.
        pub timeout: Duration = "30s",
    }
}
