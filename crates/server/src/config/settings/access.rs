//! Settings of authentication, rate limit and pool.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::declare::{Entries, SecretOrFile, section, words};
use super::super::read::{COUNT_MAX, List, Number, SECRET};
use super::super::secret::Secret;
use super::super::text::{BY_WORKER, TOKEN_ID};
use super::limits::Overflow;

section! {
    /// Keys and tokens of callers and workers.
    pub struct Auth {
        /// True to ask for `auth.api_key` on every route but `/live`, `/health`, `/ready` and
        /// `/worker/*`.
        pub enabled: bool = "false",
        /// Key that opens the API: `X-API-Key`, or `Authorization: Bearer`.
        pub api_key: Option<Secret> as SecretOrFile,
        /// Key that opens `/admin/*`, and everything else. Asked for there whenever it is set.
        pub admin_api_key: Option<Secret> as SecretOrFile,
        /// True if `auth.api_key` opens `/admin/*` while there is no admin key.
        pub admin_fallback_enabled: bool = "true",
        /// Groups of routes that only the admin key opens: `quotas`, `templates`, `providers`,
        /// `workers`, `diagnostics`, `metrics`, `events`.
        pub admin_only: Vec<RouteGroup> = "",
        /// Time for which entries of the audit history are kept.
        pub admin_audit_retention: Duration = "2160h",
        /// The most entries of the audit history that are kept.
        pub admin_audit_max_entries: u64 = "100000" as Number(1..=COUNT_MAX),
        /// Token of every worker that has none of its own.
        pub worker_token: Option<Secret> as SecretOrFile,
        /// Token of one worker, by its id. That worker may not use `auth.worker_token`.
        pub worker_tokens: BTreeMap<String, Secret> as Entries(BY_WORKER, SECRET),
        /// Key that short-lived worker tokens are signed with; `tidebox worker token` makes one.
        pub worker_signing_key: Option<Secret> as SecretOrFile,
        /// Earlier signing keys that are still accepted, while keys are changed.
        pub worker_signing_keys: Vec<Secret> = "",
        /// Signed tokens that are refused, by their `jti`.
        pub worker_revoked_token_ids: Vec<String> = "" as List(TOKEN_ID),
    }
}

words! {
    /// A group of routes that `auth.admin_only` closes to all but the admin key.
    #[derive(Hash)]
    pub enum RouteGroup {
        /// Routes at `/quotas` and below.
        Quotas = "quotas",
        /// Routes at `/templates` and below.
        Templates = "templates",
        /// Routes at `/providers` and below.
        Providers = "providers",
        /// Routes at `/workers` and below.
        Workers = "workers",
        /// Routes at `/diagnostics` and below.
        Diagnostics = "diagnostics",
        /// Routes at `/metrics` and below.
        Metrics = "metrics",
        /// Routes at `/events` and below.
        Events = "events",
    }
}

section! {
    /// Rate limit of each caller.
    pub struct RateLimit {
        /// True to limit the requests of one caller.
        pub enabled: bool = "false",
        /// Requests a minute that one caller may make in the long run.
        pub requests_per_minute: u32 = "120" as Number(1..=1_000_000),
        /// Requests that one caller may make at once.
        pub burst: u32 = "60" as Number(1..=1_000_000),
        /// Identity by which requests count as those of one caller: `owner` (`X-User-ID`, else the
        /// key, else the address), `api_key` (the key, else the address) or `ip` (the address).
        pub key_by: RateKey = "owner",
        /// Time without requests after which a caller is forgotten.
        pub bucket_ttl: Duration = "15m",
        /// Interval at which such callers are looked for.
        pub cleanup_interval: Duration = "1m",
    }
}

words! {
    /// Identity by which requests share a bucket.
    pub enum RateKey {
        /// `X-User-ID`, else the API key, else the address.
        Owner = "owner",
        /// The API key, else the address.
        ApiKey = "api_key",
        /// Address of the client.
        Ip = "ip",
    }
}

section! {
    /// Sandboxes of several users in one box.
    pub struct Pool {
        /// True to put the sandboxes of several users into one box; `X-User-ID` is then required.
        pub enabled: bool = "false",
        /// The most such boxes.
        pub max_vms: u32 = "10" as Number(1..=100_000),
        /// The most users in such a box.
        pub max_users_per_vm: u32 = "5" as Number(1..=1000),
        /// Treatment of a spawn that finds every such box full: `reject` or `queue`.
        pub overflow: Overflow = "reject",
    }
}
