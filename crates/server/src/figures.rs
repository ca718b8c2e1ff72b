//! What the service counts, as plain values: one snapshot for each area, made
//! by the area that counts and read by whoever reports. No owner, no key and no
//! address is in any of them.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::Timestamp;

/// Spawns that found no room, and who would get the next one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheduler {
    /// How many wait now.
    pub depth: u64,
    /// How many began to wait.
    pub queued_total: u64,
    /// How many of them found room.
    pub dequeued_total: u64,
    /// How many of them found none in time.
    pub timeouts_total: u64,
    /// All the time that those who found room had waited.
    pub wait_total: Duration,
    /// The longest of these waits.
    pub wait_max: Duration,
    /// The worker that this process is.
    pub worker_id: String,
    /// The worker that the next spawn would go to; `None` when none is eligible.
    pub selected_worker_id: Option<String>,
    /// How many workers the next spawn could go to.
    pub eligible_workers: u64,
}

/// What the rate limiter did since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Callers that are remembered now.
    pub active_buckets: u64,
    /// Requests that it let through.
    pub allowed_total: u64,
    /// Requests that it refused.
    pub limited_total: u64,
    /// Callers that it has forgotten.
    pub evicted_total: u64,
}

/// A worker, as the registry knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// The name of its machine.
    pub hostname: String,
    /// `online`, `draining` or `unhealthy`.
    pub status: &'static str,
    /// The providers that it offers.
    pub providers: Vec<String>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// The most sandboxes that it takes; 0 for no limit.
    pub max_sandboxes: u64,
    /// The most sandboxes that it takes of one owner; 0 for no limit.
    pub max_sandboxes_per_owner: u64,
    /// When it was heard of last.
    pub last_heartbeat: Timestamp,
    /// When it was first heard of.
    pub created_at: Timestamp,
    /// When its record changed last.
    pub updated_at: Timestamp,
    /// Whether it has not been heard of for too long.
    pub stale: bool,
}

impl Worker {
    /// Whether it says that it takes sandboxes, and has been heard of.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.status == WORKER_ONLINE && !self.stale
    }
}

/// The status of a worker that takes sandboxes.
pub const WORKER_ONLINE: &str = "online";
/// The status of a worker that cannot work.
pub const WORKER_UNHEALTHY: &str = "unhealthy";

/// The workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workers {
    /// Each of them, by id.
    pub items: Vec<Worker>,
}

impl Workers {
    /// Those that say that they are online and have been heard of.
    #[must_use]
    pub fn online(&self) -> u64 {
        self.count(Worker::is_online)
    }

    /// Those that have not been heard of for too long.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.count(|worker| worker.stale)
    }

    /// Those that say that they are unhealthy.
    #[must_use]
    pub fn unhealthy(&self) -> u64 {
        self.count(|worker| worker.status == WORKER_UNHEALTHY)
    }

    fn count(&self, belongs: impl Fn(&Worker) -> bool) -> u64 {
        self.items.iter().filter(|worker| belongs(worker)).count() as u64
    }
}

/// The leases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leases {
    /// Those that hold.
    pub active: u64,
    /// Those whose time is over.
    pub expired: u64,
    /// How many each worker holds, expired ones too.
    pub by_holder: BTreeMap<String, u64>,
}

impl Leases {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.active + self.expired
    }
}

/// A look at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHealth {
    /// Whether it answered in time.
    pub healthy: bool,
    /// How long it took, or was waited for.
    pub latency: Duration,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_worker_that_is_stale_is_not_online() {
        let worker = |status, stale| Worker {
            id: "w".into(),
            hostname: "h".into(),
            status,
            providers: vec![],
            capabilities: vec![],
            max_sandboxes: 0,
            max_sandboxes_per_owner: 0,
            last_heartbeat: Timestamp::MIN,
            created_at: Timestamp::MIN,
            updated_at: Timestamp::MIN,
            stale,
        };
        let items = vec![
            worker(WORKER_ONLINE, false),
            worker(WORKER_ONLINE, true),
            worker(WORKER_UNHEALTHY, true),
            worker("draining", false),
        ];
        let workers = Workers { items };
        assert_eq!((workers.online(), workers.stale(), workers.unhealthy()), (1, 2, 1));
    }
}
