//! Settings of authentication, rate limit and pool.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::super::declare::{Entries, SecretOrFile, section, words};
use super::super::read::{COUNT_MAX, List, Number, SECRET};
use super::super::secret::Secret;
use super::super::text::{BY_WORKER, TOKEN_ID};
use super::limits::Overflow;

/// Range of the number of keys: each takes less than 1 KiB of the server's memory.
const KEYS: RangeInclusive<u64> = 1..=1_000_000;

section! {
    /// Keys and tokens of callers and workers.
    pub struct Auth {
        /// True to require `auth.api_key` on every route except `/live`, `/health`, `/ready` and
        /// `/worker/*`.
        pub enabled: bool = "false",
        /// Key for the API, sent as `X-API-Key` or `Authorization: Bearer`. It sees what every owner has; keys of
        /// single owners are made with `tidebox key create`.
        pub api_key: Option<Secret> as SecretOrFile,
        /// Key for `/admin/*` and every other route. If it is set, `/admin/*` requires it.
        pub admin_api_key: Option<Secret> as SecretOrFile,
        /// True to accept `auth.api_key` for `/admin/*` while no admin key is set.
        pub admin_fallback_enabled: bool = "true",
        /// Groups of routes that require the admin key: `quotas`, `templates`, `providers`,
        /// `workers`, `diagnostics`, `metrics`, `events`.
        pub admin_only: Vec<RouteGroup> = "",
        /// Time for which audit entries are kept.
        pub admin_audit_retention: Duration = "2160h",
        /// Maximum number of audit entries that are kept.
        pub admin_audit_max_entries: u64 = "100000" as Number(1..=COUNT_MAX),
        /// Maximum number of owners' keys; one more gets 429. The key that ended first makes way.
        pub max_keys: u64 = "10000" as Number(KEYS),
        /// Token of every worker without an entry in `auth.worker_tokens`.
        pub worker_token: Option<Secret> as SecretOrFile,
        /// Token of one worker, by its id. That worker may not use `auth.worker_token`.
        pub worker_tokens: BTreeMap<String, Secret> as Entries(BY_WORKER, SECRET),
        /// Key that signs short-lived worker tokens, which `tidebox worker token` makes.
        pub worker_signing_key: Option<Secret> as SecretOrFile,
        /// Earlier signing keys that are still accepted, for key rotation.
        pub worker_signing_keys: Vec<Secret> = "",
        /// Revoked signed tokens, by their `jti`.
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
    /// Rate limit per caller.
    pub struct RateLimit {
        /// True to limit the requests of one caller.
        pub enabled: bool = "false",
        /// Sustained number of requests per minute of one caller.
        pub requests_per_minute: u32 = "120" as Number(1..=1_000_000),
        /// Number of requests that one caller may make at once.
        pub burst: u32 = "60" as Number(1..=1_000_000),
        /// Identity that tells callers apart: `owner` (`X-User-ID`, else the key, else the
        /// address), `api_key` (the key, else the address) or `ip` (the address).
        pub key_by: RateKey = "owner",
        /// Time without requests after which a caller is forgotten.
        pub bucket_ttl: Duration = "15m",
        /// Interval at which idle callers are removed.
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
        /// Maximum number of such boxes.
        pub max_vms: u32 = "10" as Number(1..=100_000),
        /// Maximum number of users in such a box.
        pub max_users_per_vm: u32 = "5" as Number(1..=1000),
        /// Handling of a spawn when every such box is full: `reject` or `queue`.
        pub overflow: Overflow = "reject",
    }
}
