//! What the service counts, as plain values: one snapshot for each area, made
//! by the area that counts and read by whoever reports. No owner, no key and no
//! address is in any of them.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{State, Timestamp};

/// The sandboxes whose rows are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sandboxes {
    /// How many are in each state; those that were destroyed count while their
    /// row is kept.
    pub by_state: BTreeMap<&'static str, u64>,
    /// How many active ones each provider runs.
    pub by_provider: BTreeMap<String, u64>,
    /// How many active ones each worker holds.
    pub by_worker: BTreeMap<String, u64>,
}

impl Sandboxes {
    /// None, in every state.
    #[must_use]
    pub fn none() -> Self {
        let by_state = State::ALL.into_iter().map(|state| (state.as_str(), 0)).collect();
        Self { by_state, by_provider: BTreeMap::new(), by_worker: BTreeMap::new() }
    }

    /// Adds `count` that are in `state` on a provider and a worker.
    pub fn add(&mut self, state: State, provider: &str, worker: &str, count: u64) {
        *self.by_state.entry(state.as_str()).or_default() += count;
        if state.is_active() {
            *self.by_provider.entry(provider.to_owned()).or_default() += count;
            *self.by_worker.entry(worker.to_owned()).or_default() += count;
        }
    }

    /// All whose rows are kept.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_state.values().sum()
    }

    /// Those that count under the caps.
    #[must_use]
    pub fn active(&self) -> u64 {
        let active = State::ALL.into_iter().filter(|state| state.is_active());
        active.filter_map(|state| self.by_state.get(state.as_str())).sum()
    }
}

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
    /// How many waits are over, however they ended.
    pub wait_count: u64,
    /// All the time that these took.
    pub wait_total: Duration,
    /// The longest of them.
    pub wait_max: Duration,
    /// The worker that this process is.
    pub worker_id: String,
    /// The worker that the next spawn would go to; `None` when none is eligible.
    pub selected_worker_id: Option<String>,
    /// How many workers the next spawn could go to.
    pub eligible_workers: u64,
}

/// How many owners have a quota, and of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quotas {
    /// All of them.
    pub total: u64,
    /// Those that bound the number of sandboxes.
    pub with_max_sandboxes: u64,
    /// Those that bound lifetimes.
    pub with_max_ttl: u64,
    /// Those that bound deadlines of commands.
    pub with_max_exec_timeout: u64,
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
        self.count(|worker| worker.status == WORKER_ONLINE && !worker.stale)
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

/// The events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// Who listens now.
    pub subscribers: u64,
    /// How many are kept for readers that come back.
    pub history_size: u64,
    /// How many there were since the start.
    pub events_total: u64,
}

/// A look at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHealth {
    /// Whether it answered in time.
    pub healthy: bool,
    /// How long it took, or was waited for.
    pub latency: Duration,
}

/// What only the store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The sandboxes.
    pub sandboxes: Sandboxes,
    /// The quotas.
    pub quotas: Quotas,
    /// The workers.
    pub workers: Workers,
    /// The leases.
    pub leases: Leases,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_sums_of_sandboxes_add_up() {
        let mut counts = Sandboxes::none();
        for (n, state) in (1..).zip(State::ALL) {
            counts.add(state, "native", "local", n);
        }
        counts.add(State::Running, "mock", "w1", 7);
        let active: u64 =
            (1..).zip(State::ALL).filter(|(_, state)| state.is_active()).map(|(n, _): (u64, State)| n).sum();
        assert_eq!(counts.total(), 15 + 7);
        assert_eq!(counts.active(), active + 7);
        assert_eq!(counts.by_provider.values().sum::<u64>(), counts.active());
        assert_eq!(counts.by_worker.values().sum::<u64>(), counts.active());
        assert_eq!(Sandboxes::none().by_state.len(), State::ALL.len(), "a state without sandboxes is told too");
    }

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
