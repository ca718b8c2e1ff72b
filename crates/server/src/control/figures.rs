//! What the service knows of itself, for those who watch it. One function for
//! each area; none of them looks at more than a bounded number of rows.

use std::time::{Duration, Instant};

use domain::{State, WorkerId, WorkerStatus};
use providers::{Chain, Phase};

use super::{Control, LOCAL_WORKER, Result, Seen};
use crate::events;
use crate::figures::{Scheduler, StoreHealth};
use crate::operations::Operations;
use crate::registry::AUTO_ORDER;
use crate::store::workers::LeaseCounts;
use crate::store::{Counts, QuotaSummary};

/// What only the store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The sandboxes.
    pub sandboxes: Counts,
    /// The quotas.
    pub quotas: QuotaSummary,
    /// The workers, by id.
    pub workers: Vec<Seen>,
    /// The leases.
    pub leases: LeaseCounts,
    /// The worker that the next spawn that names no provider would go to.
    pub selected_worker: Option<WorkerId>,
    /// How many workers it could go to.
    pub eligible_workers: u64,
}

impl Stored {
    /// Workers that say that they are online and have been heard of.
    pub fn online(&self) -> u64 {
        self.count(|seen| seen.worker.status == WorkerStatus::Online && !seen.stale)
    }

    /// Workers that have not been heard of for too long.
    pub fn stale(&self) -> u64 {
        self.count(|seen| seen.stale)
    }

    /// Workers that say that they are unhealthy.
    pub fn unhealthy(&self) -> u64 {
        self.count(|seen| seen.worker.status == WorkerStatus::Unhealthy)
    }

    fn count(&self, belongs: impl Fn(&Seen) -> bool) -> u64 {
        self.workers.iter().filter(|seen| belongs(seen)).count() as u64
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
            tracing::warn!(error = %Chain(error), "the store failed a check");
        }
        StoreHealth { healthy: matches!(outcome, Ok(Ok(()))), latency: started.elapsed() }
    }

    /// What only the store knows; `None` while it does not answer.
    pub async fn stored_figures(&self) -> Option<Stored> {
        let read = async {
            let workers = self.workers().await?;
            let (selected_worker, eligible_workers) = self.next_place().await?;
            Ok(Stored {
                sandboxes: self.with_zeros(self.store.counts().await?, &workers),
                quotas: self.store.quota_summary().await?,
                leases: self.store.lease_counts(self.now()).await?,
                workers,
                selected_worker,
                eligible_workers,
            })
        };
        match tokio::time::timeout(STORE_PATIENCE, read).await {
            Ok(Ok(stored)) => Some(stored),
            Ok(Err(error)) => {
                let error: super::Error = error;
                tracing::warn!(error = %Chain(&error), "cannot read the figures of the store");
                None
            }
            Err(_) => None,
        }
    }

    /// States, providers and workers without sandboxes are told too.
    fn with_zeros(&self, mut counts: Counts, workers: &[Seen]) -> Counts {
        for state in State::ALL {
            counts.by_state.entry(state.as_str().to_owned()).or_default();
        }
        for entry in self.registry.entries() {
            counts.by_provider.entry(entry.provider.name().to_owned()).or_default();
        }
        for Seen { worker, .. } in workers {
            counts.by_worker.entry(worker.id.to_string()).or_default();
        }
        counts
    }

    /// The worker that the next spawn that names no provider would go to, and
    /// how many it could go to.
    async fn next_place(&self) -> Result<(Option<WorkerId>, u64)> {
        let default = self.registry.default_entry().map(|entry| entry.provider.name());
        for provider in default.map_or(AUTO_ORDER.to_vec(), |name| vec![name]) {
            // What this server itself can do is known now, not only since its last beat.
            let here = self.registry.get(provider).is_some_and(crate::registry::Entry::is_healthy);
            let place = self.store.place(provider, None, self.now(), &self.placing(here)).await?;
            if place.0.is_some() {
                return Ok(place);
            }
        }
        Ok((None, 0))
    }

    /// How many providers of other workers a spawn may go to, and how many there are:
    /// those of the workers that are online and heard of, and those of all.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn offered_elsewhere(&self) -> Result<(u64, u64)> {
        let takers = self.takers();
        if takers.is_empty() {
            return Ok((0, 0));
        }
        let mut offered = (0, 0);
        for Seen { worker, stale } in self.workers().await?.into_iter().filter(|seen| takers.contains(&seen.worker.id))
        {
            let providers = worker.providers.len() as u64;
            offered.1 += providers;
            if worker.status == WorkerStatus::Online && !stale {
                offered.0 += providers;
            }
        }
        Ok(offered)
    }

    /// Spawns that found no room, and who would get the next one.
    pub fn scheduler_figures(&self, stored: Option<&Stored>) -> Scheduler {
        let queue = self.queue_figures();
        Scheduler {
            depth: queue.depth,
            queued_total: queue.queued,
            dequeued_total: queue.dequeued,
            timeouts_total: queue.timed_out,
            wait_total: queue.wait_total,
            wait_max: queue.wait_max,
            worker_id: LOCAL_WORKER.to_owned(),
            selected_worker_id: stored.and_then(|stored| stored.selected_worker.as_ref()).map(WorkerId::to_string),
            eligible_workers: stored.map_or(0, |stored| stored.eligible_workers),
        }
    }

    /// The events.
    pub fn events_figures(&self) -> events::Counts {
        self.events.counts()
    }
}

#[cfg(test)]
mod test {
    use domain::{Capacity, Timestamp};

    use super::*;
    use crate::store::workers::Worker;

    #[test]
    fn a_worker_that_is_stale_is_not_online() {
        let seen = |status, stale| Seen {
            worker: Worker {
                id: WorkerId::local(),
                hostname: "h".into(),
                status,
                providers: vec![],
                capabilities: vec![],
                capacity: Capacity::default(),
                last_heartbeat: Timestamp::MIN,
                created_at: Timestamp::MIN,
                updated_at: Timestamp::MIN,
            },
            stale,
        };
        let stored = Stored {
            sandboxes: Counts::default(),
            quotas: QuotaSummary::default(),
            workers: vec![
                seen(WorkerStatus::Online, false),
                seen(WorkerStatus::Online, true),
                seen(WorkerStatus::Unhealthy, true),
                seen(WorkerStatus::Draining, false),
            ],
            leases: LeaseCounts::default(),
            selected_worker: None,
            eligible_workers: 0,
        };
        assert_eq!((stored.online(), stored.stale(), stored.unhealthy()), (1, 2, 1));
    }
}
