//! The table of keys: name, type, default, meaning and reader of each.

use std::path::Path;

use super::read::{self, Read};
use super::tree::Value;
use super::{Config, Enabled, Format, Level};

/// One thing that can be set.
#[derive(Debug)]
pub(super) struct Key {
    /// The dotted name.
    pub(super) name: &'static str,
    /// The value when nothing sets it.
    pub(super) default: Default,
    /// What it means, in lines that fit the example file.
    #[cfg_attr(not(test), expect(dead_code, reason = "the test of the example file reads it"))]
    pub(super) doc: &'static [&'static str],
    /// Stores a value, or says what would be right.
    pub(super) read: fn(&mut Config, &Value, Option<&Path>) -> Read<()>,
}

/// The value of a key that nothing sets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Default {
    /// This text, read like that of a variable.
    Text(&'static str),
    /// No value.
    Unset,
    /// Depends on who runs the server; the text is what root gets.
    Derived(#[cfg_attr(not(test), expect(dead_code, reason = "the test of the example file reads it"))] &'static str),
}

/// The most bytes of output that a server will hold for one caller.
const OUTPUT_BYTES_MAX: u64 = 1 << 30;

/// The largest file of ext4.
const FILE_BYTES_MAX: u64 = 16 << 40;

/// Every key, section by section.
pub(super) const KEYS: &[Key] = &[
    Key {
        name: "server.host",
        default: Default::Text("127.0.0.1"),
        doc: &[
            "Address to listen on. This version has no authentication: keep it on",
            "loopback, or put a reverse proxy that asks for credentials in front.",
        ],
        read: |config, value, _| read::address(value).map(|it| config.server.host = it),
    },
    Key {
        name: "server.port",
        default: Default::Text("7423"),
        doc: &["TCP port to listen on; 0 lets the kernel choose one."],
        read: |config, value, _| read::integer(value, 0..=u16::MAX).map(|it| config.server.port = it),
    },
    Key {
        name: "server.preview_domain",
        default: Default::Text("localhost"),
        doc: &["Domain shown on spawn responses; a request's Host may be it."],
        read: |config, value, _| read::host_name(value).map(|it| config.server.preview_domain = it),
    },
    Key {
        name: "server.allowed_hosts",
        default: Default::Text(""),
        doc: &[
            "Further names, without ports, that a request's Host may have while the",
            "server listens on loopback. A request with any other Host gets 403.",
        ],
        read: |config, value, _| read::list(value, read::host_name).map(|it| config.server.allowed_hosts = it),
    },
    Key {
        name: "data_dir",
        default: Default::Derived("/var/lib/tidebox"),
        doc: &[
            "Folder that holds everything that must survive a restart.",
            "Default: /var/lib/tidebox for root, else ~/.local/share/tidebox.",
        ],
        read: |config, value, home| read::path(value, home).map(|it| config.data_dir = it),
    },
    Key {
        name: "database.url",
        default: Default::Derived("sqlite:///var/lib/tidebox/tidebox.db"),
        doc: &["The SQLite file. Default: sqlite://<data_dir>/tidebox.db."],
        read: |config, value, home| read::database(value, home).map(|it| config.database.path = it),
    },
    Key {
        name: "defaults.image",
        default: Default::Unset,
        doc: &["Image of a spawn that names none. Unset: the provider's own (native: host)."],
        read: |config, value, _| read::optional(value, read::image).map(|it| config.defaults.image = it),
    },
    Key {
        name: "defaults.ttl",
        default: Default::Text("30m"),
        doc: &["Lifetime of a sandbox whose spawn names none; at most defaults.max_ttl."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.defaults.ttl = it),
    },
    Key {
        name: "defaults.memory_mb",
        default: Default::Text("512"),
        doc: &["Memory limit in MiB of a spawn that names none."],
        read: |config, value, _| read::integer(value, 16..=16_777_216).map(|it| config.defaults.memory_mb = it),
    },
    Key {
        name: "defaults.vcpus",
        default: Default::Text("1"),
        doc: &["Virtual CPUs of a spawn that names none."],
        read: |config, value, _| read::integer(value, 1..=1024).map(|it| config.defaults.vcpus = it),
    },
    Key {
        name: "defaults.pids",
        default: Default::Text("256"),
        doc: &["The most processes and threads in a sandbox."],
        read: |config, value, _| read::integer(value, 8..=4_194_304).map(|it| config.defaults.pids = it),
    },
    Key {
        name: "defaults.max_ttl",
        default: Default::Text("24h"),
        doc: &["The longest lifetime that a spawn or an extension may ask for."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.defaults.max_ttl = it),
    },
    Key {
        name: "defaults.default_exec_timeout",
        default: Default::Text("60s"),
        doc: &["Deadline of a command that names none; at most defaults.max_exec_timeout."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.defaults.default_exec_timeout = it),
    },
    Key {
        name: "defaults.max_exec_timeout",
        default: Default::Text("10m"),
        doc: &["The longest deadline that a command may ask for."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.defaults.max_exec_timeout = it),
    },
    Key {
        name: "defaults.max_sandboxes",
        default: Default::Text("0"),
        doc: &["The most sandboxes at once; 0 is no limit."],
        read: |config, value, _| read::integer(value, 0..=COUNT_MAX).map(|it| config.defaults.max_sandboxes = it),
    },
    Key {
        name: "defaults.max_sandboxes_per_owner",
        default: Default::Text("0"),
        doc: &["The most sandboxes of one owner at once; 0 is no limit."],
        read: |config, value, _| {
            read::integer(value, 0..=COUNT_MAX).map(|it| config.defaults.max_sandboxes_per_owner = it)
        },
    },
    Key {
        name: "limits.max_output_bytes",
        default: Default::Text("8MiB"),
        doc: &[
            "The most bytes of each output stream in a buffered result; what is above is",
            "cut off. Bytes, or a number with KiB, MiB or GiB.",
        ],
        read: |config, value, _| {
            let bytes = read::size(value, OUTPUT_BYTES_MAX)?;
            config.limits.max_output_bytes = usize::try_from(bytes).map_err(|_| "is more than memory can address")?;
            Ok(())
        },
    },
    Key {
        name: "limits.max_file_bytes",
        default: Default::Text("1GiB"),
        doc: &["The largest file that may be written. Bytes, or a number with KiB, MiB, GiB or TiB."],
        read: |config, value, _| read::size(value, FILE_BYTES_MAX).map(|it| config.limits.max_file_bytes = it),
    },
    Key {
        name: "limits.reserve_disk_mb",
        default: Default::Text("1024"),
        doc: &["Free space in MiB that sandboxes must leave, so that the server can always write."],
        read: |config, value, _| read::integer(value, 0..=COUNT_MAX).map(|it| config.limits.reserve_disk_mb = it),
    },
    Key {
        name: "retention.destroyed",
        default: Default::Text("24h"),
        doc: &["How long a destroyed sandbox is remembered: a second DELETE is a success that long."],
        read: |config, value, _| read::duration(value).map(|it| config.retention.destroyed = it),
    },
    Key {
        name: "logging.level",
        default: Default::Text("info"),
        doc: &["error, warn, info, debug or trace."],
        read: |config, value, _| read::word(value, LEVELS).map(|it| config.logging.level = it),
    },
    Key {
        name: "logging.format",
        default: Default::Text("auto"),
        doc: &["auto, pretty or json; auto is pretty on a terminal and json otherwise."],
        read: |config, value, _| read::word(value, FORMATS).map(|it| config.logging.format = it),
    },
    Key {
        name: "providers.default",
        default: Default::Text("auto"),
        doc: &["Provider of a spawn that names none: auto, native or mock."],
        read: |config, value, _| read::default_provider(value).map(|it| config.providers.default = it),
    },
    Key {
        name: "providers.native.enabled",
        default: Default::Text("auto"),
        doc: &[
            "auto offers it where the host can do it; true offers it always, and shows it",
            "as unhealthy where the host cannot; false never.",
        ],
        read: |config, value, _| read::enabled(value).map(|it| config.providers.native.enabled = it),
    },
    Key {
        name: "providers.native.subids",
        default: Default::Unset,
        doc: &[
            "Host user and group ids for boxes, as first:count; a box takes 65536 of them.",
            "Two servers on one host need different ones. Unset: 1073741824:536870912.",
        ],
        read: |config, value, _| read::optional(value, read::subids).map(|it| config.providers.native.subids = it),
    },
    Key {
        name: "providers.native.cgroup_parent",
        default: Default::Unset,
        doc: &["Control group below which boxes get theirs. Unset: the server's own."],
        read: |config, value, _| {
            read::optional(value, read::cgroup).map(|it| config.providers.native.cgroup_parent = it)
        },
    },
    Key {
        name: "providers.mock.enabled",
        default: Default::Text("false"),
        doc: &["Offer the test double, which isolates nothing: true or false (auto is false)."],
        read: |config, value, _| read::enabled(value).map(|it| config.providers.mock.enabled = it == Enabled::True),
    },
];

/// Counts are stored and multiplied as signed 64-bit numbers.
const COUNT_MAX: u64 = 1_000_000_000;

const LEVELS: &[(&str, Level)] = &[
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

const FORMATS: &[(&str, Format)] = &[("auto", Format::Auto), ("pretty", Format::Pretty), ("json", Format::Json)];
