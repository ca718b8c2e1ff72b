//! What the service knows of itself, for those who watch it. One function for
//! each area; none of them looks at more than a bounded number of rows.

use std::time::{Duration, Instant};

use domain::State;
use providers::Phase;

use super::runtime::AUTO_ORDER;
use super::{Control, LOCAL_WORKER, Result, Seen};
use crate::events;
use crate::figures::{Leases, Scheduler, StoreHealth, Worker, Workers};
use crate::operations::Operations;
use crate::store::workers::LeaseCounts;
use crate::store::{Counts, QuotaSummary};

/// What only the store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The sandboxes.
    pub sandboxes: Counts,
    /// The quotas.
    pub quotas: QuotaSummary,
    /// The workers.
    pub workers: Workers,
    /// The leases.
    pub leases: Leases,
}

impl Stored {
    /// The workers that a sandbox of `provider` could go to, the one with the
    /// fewest sandboxes first, ties by id.
    fn eligible(&self, provider: &str, is_reachable: impl Fn(&str) -> bool) -> Vec<&Worker> {
        let active = |worker: &Worker| self.sandboxes.by_worker.get(&worker.id).copied().unwrap_or(0);
        let mut eligible: Vec<&Worker> = self.workers.items.iter().collect();
        eligible.retain(|worker| {
            let has_room = worker.max_sandboxes == 0 || active(worker) < worker.max_sandboxes;
            is_reachable(&worker.id)
                && worker.is_online()
                && worker.providers.iter().any(|offered| offered == provider)
                && has_room
        });
        eligible.sort_by(|a, b| (active(a), &a.id).cmp(&(active(b), &b.id)));
        eligible
    }
}

/// The store is not waited for any longer by those who only watch.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

impl Control {
    /// How often what was done, how it went, and how long it took.
    pub fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Counts the parts of the time that a spawn took.
    pub(super) fn record_phases(&self, provider: &str, phases: &[Phase]) {
        self.operations.record_phases(provider, phases.iter().map(|phase| (phase.name, phase.took)));
    }

    /// Looks whether the store answers, now.
    pub async fn store_health(&self) -> StoreHealth {
        let started = Instant::now();
        let outcome = tokio::time::timeout(STORE_PATIENCE, self.store.check()).await;
        if let Ok(Err(error)) = &outcome {
            tracing::warn!(error = error as &dyn std::error::Error, "the store failed a check");
        }
        StoreHealth { healthy: matches!(outcome, Ok(Ok(()))), latency: started.elapsed() }
    }

    /// What only the store knows; `None` while it does not answer.
    pub async fn stored_figures(&self) -> Option<Stored> {
        let read = async {
            let workers = self.workers_figures().await?;
            Ok(Stored {
                sandboxes: self.with_zeros(self.store.counts().await?, &workers),
                quotas: self.store.quota_summary().await?,
                leases: self.leases_figures().await?,
                workers,
            })
        };
        match tokio::time::timeout(STORE_PATIENCE, read).await {
            Ok(Ok(stored)) => Some(stored),
            Ok(Err(error)) => {
                let error: super::Error = error;
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot read the figures of the store");
                None
            }
            Err(_) => None,
        }
    }

    /// States, providers and workers without sandboxes are told too.
    fn with_zeros(&self, mut counts: Counts, workers: &Workers) -> Counts {
        for state in State::ALL {
            counts.by_state.entry(state.as_str().to_owned()).or_default();
        }
        for entry in self.registry.entries() {
            counts.by_provider.entry(entry.provider.name().to_owned()).or_default();
        }
        for worker in &workers.items {
            counts.by_worker.entry(worker.id.clone()).or_default();
        }
        counts
    }

    /// Spawns that found no room, and who would get the next one that names no
    /// provider.
    pub fn scheduler_figures<'a>(&self, stored: Option<&'a Stored>) -> Scheduler {
        let queue = self.queue_figures();
        // What this server itself can do is known now, not only since its last beat.
        let is_healthy_here =
            |provider: &str| self.registry.get(provider).is_some_and(crate::registry::Entry::is_healthy);
        let eligible_for = |stored: &'a Stored, provider: &str| {
            let takes = |id: &str| if id == LOCAL_WORKER { is_healthy_here(provider) } else { self.is_reachable(id) };
            stored.eligible(provider, takes)
        };
        let eligible = |stored: &'a Stored| match self.registry.default_entry() {
            Some(entry) => eligible_for(stored, entry.provider.name()),
            // As a spawn would pick it.
            None => {
                let picked = AUTO_ORDER.into_iter().map(|auto| eligible_for(stored, auto));
                picked.into_iter().find(|eligible| !eligible.is_empty()).unwrap_or_default()
            }
        };
        let eligible = stored.map(eligible).unwrap_or_default();
        Scheduler {
            depth: queue.depth,
            queued_total: queue.queued,
            dequeued_total: queue.dequeued,
            timeouts_total: queue.timed_out,
            wait_total: queue.wait_total,
            wait_max: queue.wait_max,
            worker_id: LOCAL_WORKER.to_owned(),
            selected_worker_id: eligible.first().map(|worker| worker.id.clone()),
            eligible_workers: eligible.len() as u64,
        }
    }

    /// The events.
    pub fn events_figures(&self) -> events::Counts {
        self.events.counts()
    }

    async fn leases_figures(&self) -> Result<Leases> {
        let LeaseCounts { active, expired, by_holder } = self.store.lease_counts(self.now()).await?;
        Ok(Leases { active, expired, by_holder })
    }

    async fn workers_figures(&self) -> Result<Workers> {
        let items = self.workers().await?.into_iter().map(|Seen { worker, stale }| Worker {
            id: worker.id.to_string(),
            hostname: worker.hostname,
            status: worker.status.as_str(),
            providers: worker.providers,
            capabilities: worker.capabilities,
            max_sandboxes: worker.capacity.max_sandboxes,
            max_sandboxes_per_owner: worker.capacity.max_sandboxes_per_owner,
            last_heartbeat: worker.last_heartbeat,
            created_at: worker.created_at,
            updated_at: worker.updated_at,
            stale,
        });
        Ok(Workers { items: items.collect() })
    }

    /// Whether a sandbox could go to a worker of this id at all.
    fn is_reachable(&self, id: &str) -> bool {
        id == LOCAL_WORKER || self.takers().iter().any(|other| other.as_str() == id)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::figures;

    fn worker(id: &str, max_sandboxes: u64) -> Worker {
        let at = domain::Timestamp::UNIX_EPOCH;
        Worker {
            id: id.to_owned(),
            hostname: "h".to_owned(),
            status: figures::WORKER_ONLINE,
            providers: vec!["native".to_owned()],
            capabilities: vec![],
            max_sandboxes,
            max_sandboxes_per_owner: 0,
            last_heartbeat: at,
            created_at: at,
            updated_at: at,
            stale: false,
        }
    }

    #[test]
    fn eligible_workers_have_room_and_the_idlest_is_first() {
        let by_worker = [("a", 2), ("b", 1), ("c", 1), ("full", 1)];
        let items = vec![
            worker("a", 0),
            worker("c", 0),
            worker("b", 2),
            worker("full", 1),
            worker("unreachable", 0),
            Worker { stale: true, ..worker("stale", 0) },
            Worker { status: "draining", ..worker("draining", 0) },
            Worker { providers: vec!["mock".to_owned()], ..worker("other", 0) },
        ];
        let stored = Stored {
            sandboxes: Counts {
                by_worker: by_worker.map(|(id, count)| (id.to_owned(), count)).into(),
                ..Counts::default()
            },
            quotas: QuotaSummary::default(),
            workers: Workers { items },
            leases: Leases::default(),
        };
        let ids: Vec<&str> =
            stored.eligible("native", |id| id != "unreachable").iter().map(|worker| worker.id.as_str()).collect();
        assert_eq!(ids, ["b", "c", "a"]);
        assert!(stored.eligible("docker", |_| true).is_empty());
    }
}
