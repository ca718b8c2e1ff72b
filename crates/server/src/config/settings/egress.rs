//! Settings of connections out of sandboxes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use domain::{EgressEntry, EgressLists, EgressMode, EgressPolicy, Target};

use super::super::declare::{Entries, Nested, Sections, section, words};
use super::super::read::{COUNT_MAX, LATER_FILE, List, Number, Optional, PRIVATE_FILE};
use super::super::text::{ADDRESS, BY_HOST, BY_LIST, BY_OWNER, EGRESS_ENTRY, EGRESS_TARGET, NOTE};

section! {
    /// Connections out of sandboxes: the maximum, the default and the limits.
    pub struct Egress {
        /// Widest access of any sandbox: `none`, `allow-list` or `open`. Policies of owners,
        /// templates and sandboxes can only narrow it.
        pub mode: Mode = "open",
        /// Targets of the mode `allow-list`: `pypi.org:443`, `*.example.net`, `10.0.0.0/8:5432`, or
        /// `@name` for a list.
        pub allow: Vec<EgressEntry> = "" as List(EGRESS_ENTRY),
        /// Targets that no sandbox may reach, even if other settings allow them.
        pub deny: Vec<EgressEntry> = "" as List(EGRESS_ENTRY),
        pub default: DefaultEgress as Nested,
        /// Addresses outside the public internet (loopback, private, link-local, the host's own)
        /// that policies may allow, such as `10.1.2.0/24:5432`. The server's own port must be
        /// listed with the address.
        pub internal: Vec<Target> = "" as List(EGRESS_TARGET),
        /// Fixed addresses of host names, used instead of DNS, such as
        /// `registry.internal: [10.1.2.3]`.
        pub hosts: BTreeMap<String, Vec<IpAddr>> as Entries(BY_HOST, List(ADDRESS)),
        /// Lists of targets that a policy names as `@name`.
        pub lists: BTreeMap<String, EgressList> as Sections(BY_LIST),
        /// Policies of owners, by owner id.
        pub owners: BTreeMap<String, OwnerEgress> as Sections(BY_OWNER),
        /// Maximum number of connections of one sandbox at once.
        pub max_connections: u32 = "128" as Number(1..=1000),
        /// Sustained number of new connections per second of one sandbox, which is also the burst.
        pub max_connections_per_second: u32 = "50" as Number(1..=100_000),
        /// Bytes per second of one sandbox, both directions together; 0 for no limit.
        pub max_bytes_per_second: u64 = "0" as Number(0..=COUNT_MAX),
        /// Mebibytes that one sandbox may exchange in total, both directions together; 0 for no limit.
        pub max_mb: u64 = "0" as Number(0..=COUNT_MAX),
        /// Mebibytes of server memory for data on all connections that waits for a box or a host.
        pub max_memory_mb: u64 = "64" as Number(4..=COUNT_MAX),
        /// Time without traffic after which a connection is closed.
        pub idle_timeout: Duration = "15m",
        /// Timeout for resolving a name and connecting to the host.
        pub connect_timeout: Duration = "10s",
    }
}

section! {
    /// Secrets that the server sends to hosts for sandboxes.
    pub struct Secrets {
        /// File with the 32 random bytes that seal the secrets in the database. Unset:
        /// `<data_dir>/secrets.key`, created at the first start. Stored secrets cannot be opened
        /// without this file, so a copy of the data folder without it reveals none.
        pub key_file: Option<PathBuf> as Optional(PRIVATE_FILE),
        /// PEM authorities to trust for hosts that get secrets, in addition to the system's.
        pub ca_file: Option<PathBuf> as Optional(LATER_FILE),
    }
}

section! {
    /// Policy of a sandbox whose spawn and template set none.
    pub struct DefaultEgress {
        /// Connections that such a sandbox may make: `none`, `allow-list` or `open`.
        pub mode: Mode = "none",
        /// Targets of the mode `allow-list`.
        pub allow: Vec<EgressEntry> = "" as List(EGRESS_ENTRY),
        /// Targets that such a sandbox may not reach.
        pub deny: Vec<EgressEntry> = "" as List(EGRESS_ENTRY),
    }
}

section! {
    /// List of targets.
    pub struct EgressList {
        /// Targets of the list: names, wildcards and networks, each with or without a port.
        pub hosts: Vec<Target> = "" as List(EGRESS_TARGET),
        /// Note for operators.
        pub notes: Option<String> as Optional(NOTE),
    }
}

section! {
    /// Policy that limits all sandboxes of this owner.
    pub struct OwnerEgress {
        /// Widest access of the owner's sandboxes: `none`, `allow-list` or `open`.
        pub mode: Mode = "open",
        /// Targets of the mode `allow-list`.
        pub allow: Vec<EgressEntry> = "" as List(EGRESS_ENTRY),
        /// Targets that its sandboxes may not reach.
        pub deny: Vec<EgressEntry> = "" as List(EGRESS_ENTRY),
    }
}

words! {
    /// Connections that a policy lets through.
    pub enum Mode {
        /// None.
        None = "none",
        /// Those to the targets that it allows.
        AllowList = "allow-list",
        /// All but those to the targets that it denies.
        Open = "open",
    }
}

impl From<Mode> for EgressMode {
    fn from(mode: Mode) -> EgressMode {
        match mode {
            Mode::None => EgressMode::None,
            Mode::AllowList => EgressMode::AllowList,
            Mode::Open => EgressMode::Open,
        }
    }
}

impl Egress {
    /// Returns the policy that no sandbox exceeds.
    #[must_use]
    pub fn site(&self) -> EgressPolicy {
        EgressPolicy {
            mode: self.mode.into(),
            allow: self.allow.clone(),
            deny: self.deny.clone(),
            ..EgressPolicy::default()
        }
    }

    /// Returns the policy of a sandbox for which none is asked.
    #[must_use]
    pub fn default_policy(&self) -> EgressPolicy {
        let DefaultEgress { mode, allow, deny } = self.default.clone();
        EgressPolicy { mode: mode.into(), allow, deny, ..EgressPolicy::default() }
    }

    /// Returns the policies of owners, by owner id.
    #[must_use]
    pub fn owner_policies(&self) -> BTreeMap<String, EgressPolicy> {
        let policies = self.owners.iter().map(|(owner, own)| {
            let OwnerEgress { mode, allow, deny } = own.clone();
            (owner.clone(), EgressPolicy { mode: mode.into(), allow, deny, ..EgressPolicy::default() })
        });
        policies.collect()
    }

    /// Returns the targets of each list.
    #[must_use]
    pub fn targets_of_lists(&self) -> EgressLists {
        self.lists.iter().map(|(name, list)| (name.clone(), list.hosts.clone())).collect()
    }
}
