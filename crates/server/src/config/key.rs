//! The table of keys: name, type, default, meaning and reader of each.

mod limits;
mod runtimes;
mod workers;

use std::ops::RangeInclusive;
use std::path::Path;

use domain::Resources;

use super::read::{self, Read};
use super::tree::Value;
use super::{Config, Enabled, Format, Level, Overflow, RateKey, RouteGroup};

/// One key of the configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    /// The dotted name; `*` stands for the name of an entry in a map.
    pub(super) name: &'static str,
    /// The value when nothing sets it.
    pub(super) default: Default,
    /// Description, in lines that fit the example file.
    #[cfg_attr(not(test), expect(dead_code, reason = "the test of the example file reads it"))]
    pub(super) doc: &'static [&'static str],
    /// Reader, which stores a value or returns what a right one would be.
    pub(super) read: fn(&mut Config, &Value, At<'_>) -> Read<()>,
}

/// Context in which a value is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    /// The home directory, for `~/`.
    pub(super) home: Option<&'a Path>,
    /// Text that replaces the `*` in the key's name; empty for a name without one.
    pub(super) entry: &'a str,
}

impl Key {
    /// Returns whether its value is a key or token, which is never shown. A test compares the
    /// names with what the readers store.
    pub(super) fn is_secret(&self) -> bool {
        let mut parts = self.name.rsplit('.').filter(|part| *part != "*");
        let last = parts.next().unwrap_or_default();
        ["key", "keys", "token", "tokens", "password"]
            .iter()
            .any(|noun| last == *noun || last.ends_with(&format!("_{noun}")))
    }

    /// Returns whether a secret may be written here by mistake: the key takes the name of a
    /// secret's file, or the ids of tokens.
    pub(super) fn is_beside_a_secret(&self) -> bool {
        ["_key_file", "token_file", "token_ids", "password_file"].iter().any(|end| self.name.ends_with(end))
    }

    /// Returns the text that replaces the `*` if `dotted` is this key's name; empty for a key
    /// without `*`.
    pub(super) fn entry<'a>(&self, dotted: &'a str) -> Option<&'a str> {
        match self.name.split_once('*') {
            None => (self.name == dotted).then_some(""),
            Some((before, after)) => {
                let entry = dotted.strip_prefix(before)?.strip_suffix(after)?;
                let has_dots = entry.contains('.') && !before.strip_suffix('.').is_some_and(names_have_dots);
                (!entry.is_empty() && !has_dots).then_some(entry)
            }
        }
    }
}

/// Returns whether the entries of the section `name` are named after hosts.
pub(super) fn names_hosts(name: &str) -> bool {
    name == "images.registries"
}

/// Returns whether the entries of the section `name` may have dots in their names, as hosts do,
/// and workers, which are mostly named after hosts.
pub(super) fn names_have_dots(name: &str) -> bool {
    names_hosts(name) || matches!(name, "workers" | "auth.worker_tokens")
}

/// Splits `dotted` into its sections and name; a host is one of them.
pub(super) fn parts(dotted: &str) -> Vec<&str> {
    let host = KEYS.iter().filter(|key| key.name.contains('*')).find_map(|key| Some((key, key.entry(dotted)?)));
    match host {
        Some((key, entry)) if entry.contains('.') => {
            key.name.split('.').map(|part| if part == "*" { entry } else { part }).collect()
        }
        Some(_) | None => dotted.split('.').collect(),
    }
}

/// The value of a key that nothing sets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Default {
    /// Text that is read like that of a variable.
    Text(&'static str),
    Unset,
    /// Value that depends on the server's user; the text is the value for root.
    Derived(#[cfg_attr(not(test), expect(dead_code, reason = "the test of the example file reads it"))] &'static str),
}

/// Bounds on the memory of a sandbox, in mebibytes.
const MEMORY_MB: RangeInclusive<u32> = Resources::MEMORY_MB.0..=Resources::MEMORY_MB.1;

/// Bounds on the virtual CPUs of a sandbox.
const VCPUS: RangeInclusive<u32> = Resources::VCPUS.0..=Resources::VCPUS.1;

/// Every key, section by section.
pub(super) const KEYS: &[Key] = &{
    const PARTS: [&[Key]; 7] =
        [SERVER, limits::KEYS, LOGGING, runtimes::PROVIDERS, runtimes::IMAGES, ACCESS, workers::KEYS];
    const COUNT: usize = {
        let (mut count, mut part) = (0, 0);
        while part < PARTS.len() {
            (count, part) = (count + PARTS[part].len(), part + 1);
        }
        count
    };
    let mut keys = [SERVER[0]; COUNT];
    let (mut part, mut of_part, mut at) = (0, 0, 0);
    while at < COUNT {
        if of_part == PARTS[part].len() {
            (part, of_part) = (part + 1, 0);
            continue;
        }
        keys[at] = PARTS[part][of_part];
        (of_part, at) = (of_part + 1, at + 1);
    }
    keys
};

/// Keys of a single server: listener, storage, defaults and bounds of requests.
const SERVER: &[Key] = &[
    Key {
        name: "server.host",
        default: Default::Text("127.0.0.1"),
        doc: &["Address to listen on. Set auth.enabled before anything but loopback."],
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
        name: "server.cors_allowed_origins",
        default: Default::Text("*"),
        doc: &[
            "Origins whose pages may use the API, such as https://app.example.com; * for any.",
            "* never opens a WebSocket, and config lint --production refuses it.",
        ],
        read: |config, value, _| read::list(value, read::origin).map(|it| config.server.cors_allowed_origins = it),
    },
    Key {
        name: "server.tls.cert_file",
        default: Default::Unset,
        doc: &["PEM chain to serve HTTPS with; needs server.tls.key_file. Read again when it changes."],
        read: |config, value, at| {
            read::optional(value, |value| read::path(value, at.home)).map(|it| config.server.tls.cert_file = it)
        },
    },
    Key {
        name: "server.tls.key_file",
        default: Default::Unset,
        doc: &["PEM private key of server.tls.cert_file."],
        read: |config, value, at| {
            read::optional(value, |value| read::path(value, at.home)).map(|it| config.server.tls.key_file = it)
        },
    },
    Key {
        name: "server.unix_socket",
        default: Default::Unset,
        doc: &["Unix socket to listen on besides TCP; only this server's user can use it."],
        read: |config, value, at| {
            read::optional(value, |value| read::path(value, at.home)).map(|it| config.server.unix_socket = it)
        },
    },
    Key {
        name: "server.trusted_proxies",
        default: Default::Text(""),
        doc: &["Addresses or networks of proxies whose X-Forwarded-For is believed, such as 10.0.0.0/8."],
        read: |config, value, _| read::list(value, read::network).map(|it| config.server.trusted_proxies = it),
    },
    Key {
        name: "data_dir",
        default: Default::Derived("/var/lib/tidebox"),
        doc: &[
            "Folder that holds everything that must survive a restart.",
            "Default: /var/lib/tidebox for root, else ~/.local/share/tidebox.",
        ],
        read: |config, value, at| read::path(value, at.home).map(|it| config.data_dir = it),
    },
    Key {
        name: "database.url",
        default: Default::Derived("sqlite:///var/lib/tidebox/tidebox.db"),
        doc: &["The SQLite file. Default: sqlite://<data_dir>/tidebox.db."],
        read: |config, value, at| read::database(value, at.home).map(|it| config.database.path = it),
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
        read: |config, value, _| read::integer(value, MEMORY_MB).map(|it| config.defaults.memory_mb = it),
    },
    Key {
        name: "defaults.vcpus",
        default: Default::Text("1"),
        doc: &["Virtual CPUs of a spawn that names none."],
        read: |config, value, _| read::integer(value, VCPUS).map(|it| config.defaults.vcpus = it),
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
        name: "defaults.max_memory_mb",
        default: Default::Text("auto"),
        doc: &["The most memory in MiB of one sandbox; auto is three quarters of the machine's."],
        read: |config, value, _| read::or_auto(value, MEMORY_MB).map(|it| config.defaults.max_memory_mb = it),
    },
    Key {
        name: "defaults.max_vcpus",
        default: Default::Text("auto"),
        doc: &["The most virtual CPUs of one sandbox; auto is as many as the machine has."],
        read: |config, value, _| read::or_auto(value, VCPUS).map(|it| config.defaults.max_vcpus = it),
    },
    Key {
        name: "defaults.max_disk_mb",
        default: Default::Text("auto"),
        doc: &[
            "The largest disk_mb in MiB; auto is half of the disk that data_dir is on. A number",
            "is also the bound of a sandbox that names none.",
        ],
        read: |config, value, _| {
            read::or_auto(value, 1..=Resources::DISK_MB.1).map(|it| config.defaults.max_disk_mb = it)
        },
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
        name: "defaults.spawn_overflow",
        default: Default::Text("reject"),
        doc: &["What a spawn gets that finds no room: reject or queue."],
        read: |config, value, _| read::word(value, OVERFLOWS).map(|it| config.defaults.spawn_overflow = it),
    },
    Key {
        name: "defaults.spawn_queue_timeout",
        default: Default::Text("30s"),
        doc: &["How long a spawn may wait for room."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.defaults.spawn_queue_timeout = it),
    },
    Key {
        name: "defaults.max_spawn_queue",
        default: Default::Text("100"),
        doc: &["How many spawns may wait for room at once."],
        read: |config, value, _| read::integer(value, 1..=100_000).map(|it| config.defaults.max_spawn_queue = it),
    },
    Key {
        name: "defaults.max_spawn_queue_per_owner",
        default: Default::Text("auto"),
        doc: &["How many of them may be one owner's; auto is as many as it leaves free for others."],
        read: |config, value, _| {
            read::or_auto(value, 1..=100_000).map(|it| config.defaults.max_spawn_queue_per_owner = it)
        },
    },
];

/// Keys of the log, and of the default provider.
const LOGGING: &[Key] = &[
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
        doc: &["Provider of a spawn that names none: auto, native, docker, proot, mock or the name of custom."],
        read: |config, value, _| read::default_provider(value).map(|it| config.providers.default = it),
    },
];

/// Keys of authentication, rate limit and pool.
const ACCESS: &[Key] = &[
    Key {
        name: "auth.enabled",
        default: Default::Text("false"),
        doc: &["Ask for auth.api_key on every route but /live, /health, /ready and /worker/*."],
        read: |config, value, _| read::flag(value).map(|it| config.auth.enabled = it),
    },
    Key {
        name: "auth.api_key",
        default: Default::Unset,
        doc: &["Key that opens the API: X-API-Key, or Authorization: Bearer."],
        read: |config, value, _| read::optional(value, read::secret).map(|it| config.auth.api_key = it),
    },
    Key {
        name: "auth.api_key_file",
        default: Default::Unset,
        doc: &["File that holds auth.api_key; one of the two."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.auth.api_key_file = it),
    },
    Key {
        name: "auth.admin_api_key",
        default: Default::Unset,
        doc: &["Key that opens /admin/*, and everything else. Asked for there whenever it is set."],
        read: |config, value, _| read::optional(value, read::secret).map(|it| config.auth.admin_api_key = it),
    },
    Key {
        name: "auth.admin_api_key_file",
        default: Default::Unset,
        doc: &["File that holds auth.admin_api_key; one of the two."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.auth.admin_api_key_file = it),
    },
    Key {
        name: "auth.admin_fallback_enabled",
        default: Default::Text("true"),
        doc: &["Whether auth.api_key opens /admin/* while there is no admin key."],
        read: |config, value, _| read::flag(value).map(|it| config.auth.admin_fallback_enabled = it),
    },
    Key {
        name: "auth.admin_only",
        default: Default::Text(""),
        doc: &[
            "Groups that only the admin key opens: quotas, templates, providers, workers,",
            "diagnostics, metrics, events.",
        ],
        read: |config, value, _| {
            read::list(value, |value| read::word(value, GROUPS)).map(|it| config.auth.admin_only = it)
        },
    },
    Key {
        name: "auth.admin_audit_retention",
        default: Default::Text("2160h"),
        doc: &["How long the audit history is kept."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.auth.admin_audit_retention = it),
    },
    Key {
        name: "auth.admin_audit_max_entries",
        default: Default::Text("100000"),
        doc: &["How many entries the audit history keeps."],
        read: |config, value, _| read::integer(value, 1..=COUNT_MAX).map(|it| config.auth.admin_audit_max_entries = it),
    },
    Key {
        name: "auth.worker_token",
        default: Default::Unset,
        doc: &["Token of every worker that has none of its own."],
        read: |config, value, _| read::optional(value, read::secret).map(|it| config.auth.worker_token = it),
    },
    Key {
        name: "auth.worker_token_file",
        default: Default::Unset,
        doc: &["File that holds auth.worker_token; one of the two."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.auth.worker_token_file = it),
    },
    Key {
        name: "auth.worker_tokens.*",
        default: Default::Unset,
        doc: &["Token of one worker, by its id. That worker may not use auth.worker_token."],
        read: |config, value, at| {
            let id = read::worker_id(at.entry)?;
            config.auth.worker_tokens.insert(id, read::secret(value)?);
            Ok(())
        },
    },
    Key {
        name: "auth.worker_signing_key",
        default: Default::Unset,
        doc: &["Key that short-lived worker tokens are signed with; tidebox worker token makes one."],
        read: |config, value, _| read::optional(value, read::secret).map(|it| config.auth.worker_signing_key = it),
    },
    Key {
        name: "auth.worker_signing_key_file",
        default: Default::Unset,
        doc: &["File that holds auth.worker_signing_key; one of the two."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.auth.worker_signing_key_file = it),
    },
    Key {
        name: "auth.worker_signing_keys",
        default: Default::Text(""),
        doc: &["Earlier signing keys that are still accepted, while keys are changed."],
        read: |config, value, _| read::list(value, read::secret).map(|it| config.auth.worker_signing_keys = it),
    },
    Key {
        name: "auth.worker_revoked_token_ids",
        default: Default::Text(""),
        doc: &["Signed tokens that are refused, by their jti."],
        read: |config, value, _| read::list(value, read::label).map(|it| config.auth.worker_revoked_token_ids = it),
    },
    Key {
        name: "rate_limit.enabled",
        default: Default::Text("false"),
        doc: &["Limit how many requests one caller may make."],
        read: |config, value, _| read::flag(value).map(|it| config.rate_limit.enabled = it),
    },
    Key {
        name: "rate_limit.requests_per_minute",
        default: Default::Text("120"),
        doc: &["How many requests a minute, in the long run."],
        read: |config, value, _| {
            read::integer(value, 1..=1_000_000).map(|it| config.rate_limit.requests_per_minute = it)
        },
    },
    Key {
        name: "rate_limit.burst",
        default: Default::Text("60"),
        doc: &["How many requests at once."],
        read: |config, value, _| read::integer(value, 1..=1_000_000).map(|it| config.rate_limit.burst = it),
    },
    Key {
        name: "rate_limit.key_by",
        default: Default::Text("owner"),
        doc: &[
            "Who counts as one caller: owner (X-User-ID, else the key, else the address),",
            "api_key (the key, else the address) or ip (the address).",
        ],
        read: |config, value, _| read::word(value, RATE_KEYS).map(|it| config.rate_limit.key_by = it),
    },
    Key {
        name: "rate_limit.bucket_ttl",
        default: Default::Text("15m"),
        doc: &["How long a caller is remembered that makes no requests."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.rate_limit.bucket_ttl = it),
    },
    Key {
        name: "rate_limit.cleanup_interval",
        default: Default::Text("1m"),
        doc: &["How often such callers are forgotten."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.rate_limit.cleanup_interval = it),
    },
    Key {
        name: "pool.enabled",
        default: Default::Text("false"),
        doc: &["Put the sandboxes of several users into one box; X-User-ID is then required."],
        read: |config, value, _| read::flag(value).map(|it| config.pool.enabled = it),
    },
    Key {
        name: "pool.max_vms",
        default: Default::Text("10"),
        doc: &["The most such boxes."],
        read: |config, value, _| read::integer(value, 1..=100_000).map(|it| config.pool.max_vms = it),
    },
    Key {
        name: "pool.max_users_per_vm",
        default: Default::Text("5"),
        doc: &["The most users in such a box."],
        read: |config, value, _| read::integer(value, 1..=1000).map(|it| config.pool.max_users_per_vm = it),
    },
    Key {
        name: "pool.overflow",
        default: Default::Text("reject"),
        doc: &["What a spawn gets that finds every such box full: reject or queue."],
        read: |config, value, _| read::word(value, OVERFLOWS).map(|it| config.pool.overflow = it),
    },
];

/// Largest count that can be configured: counts are stored and multiplied as signed 64-bit
/// numbers.
const COUNT_MAX: u64 = 1_000_000_000;

const LEVELS: &[(&str, Level)] = &[
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

const FORMATS: &[(&str, Format)] = &[("auto", Format::Auto), ("pretty", Format::Pretty), ("json", Format::Json)];

const OVERFLOWS: &[(&str, Overflow)] = &[("reject", Overflow::Reject), ("queue", Overflow::Queue)];

const RATE_KEYS: &[(&str, RateKey)] = &[("owner", RateKey::Owner), ("api_key", RateKey::ApiKey), ("ip", RateKey::Ip)];

const GROUPS: &[(&str, RouteGroup)] = &[
    ("quotas", RouteGroup::Quotas),
    ("templates", RouteGroup::Templates),
    ("providers", RouteGroup::Providers),
    ("workers", RouteGroup::Workers),
    ("diagnostics", RouteGroup::Diagnostics),
    ("metrics", RouteGroup::Metrics),
    ("events", RouteGroup::Events),
];
