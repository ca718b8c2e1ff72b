//! Metrics of the service. One function for each area; each reads a bounded number of rows.

use std::time::{Duration, Instant};

use domain::{State, WorkerId, WorkerStatus};
use providers::{Chain, Phase};

use crate::control::error::{Error, Result};
use crate::control::service::Control;
use crate::control::workers::registry::Seen;
use crate::events;
use crate::operation_metrics::Operations;
use crate::provider_registry::AUTO_ORDER;
use crate::stats::{Scheduler, StoreHealth};
use store::workers::LeaseCounts;
use store::{Counts, QuotaSummary};

/// Metrics read from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub sandboxes: Counts,
    pub quotas: QuotaSummary,
    /// Workers, ordered by id.
    pub workers: Vec<Seen>,
    pub leases: LeaseCounts,
    /// Worker that the next spawn without a provider would be placed on.
    pub selected_worker: Option<WorkerId>,
    /// Number of eligible workers for that spawn.
    pub eligible_workers: u64,
}

impl Stored {
    /// Returns the number of workers with status `online` and a recent heartbeat.
    pub fn online(&self) -> u64 {
        self.count(|seen| seen.worker.status == WorkerStatus::Online && !seen.stale)
    }

    /// Returns the number of workers whose last heartbeat is too old.
    pub fn stale(&self) -> u64 {
        self.count(|seen| seen.stale)
    }

    /// Returns the number of workers with status `unhealthy`.
    pub fn unhealthy(&self) -> u64 {
        self.count(|seen| seen.worker.status == WorkerStatus::Unhealthy)
    }

    fn count(&self, belongs: impl Fn(&Seen) -> bool) -> u64 {
        self.workers.iter().filter(|seen| belongs(seen)).count() as u64
    }
}

/// Deadline of the store for requests that only monitor.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

impl Control {
    /// Returns the counts, outcomes and durations of operations.
    pub fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Records the durations of a spawn's phases.
    pub(in crate::control) fn record_phases(&self, provider: &str, phases: &[Phase]) {
        self.operations.record_phases(provider, phases.iter().map(|phase| (phase.name, phase.took)));
    }

    /// Checks whether the store answers now.
    pub async fn store_health(&self) -> StoreHealth {
        let started = Instant::now();
        let outcome = tokio::time::timeout(STORE_PATIENCE, self.store.check()).await;
        if let Ok(Err(error)) = &outcome {
            tracing::warn!(error = %Chain(error), "the store failed a check");
        }
        StoreHealth { healthy: matches!(outcome, Ok(Ok(()))), latency: started.elapsed() }
    }

    /// Returns the metrics from the store; `None` if it does not answer.
    pub async fn stored_stats(&self) -> Option<Stored> {
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
                let error: Error = error;
                tracing::warn!(error = %Chain(&error), "cannot read the statistics of the store");
                None
            }
            Err(_) => None,
        }
    }

    /// Adds zeros for states, providers and workers without sandboxes.
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

    /// Returns the worker that the next spawn without a provider would be placed on, and the
    /// number of eligible workers.
    async fn next_place(&self) -> Result<(Option<WorkerId>, u64)> {
        let default = self.registry.default_entry().map(|entry| entry.provider.name());
        for provider in default.map_or(AUTO_ORDER.to_vec(), |name| vec![name]) {
            // The registry's health of this server is newer than its last heartbeat.
            let here = self.registry.get(provider).is_some_and(crate::provider_registry::Entry::is_healthy);
            let place = self.store.place(provider, None, self.now(), &self.placement(here)).await?;
            if place.0.is_some() {
                return Ok(place);
            }
        }
        Ok((None, 0))
    }

    /// Returns the number of providers of other workers that a spawn may be placed on, which are
    /// those of online workers that answer and have a recent heartbeat, and the number of
    /// providers of all other workers.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn offered_elsewhere(&self) -> Result<(u64, u64)> {
        let eligible_workers = self.eligible_workers();
        if eligible_workers.is_empty() {
            return Ok((0, 0));
        }
        let answering = self.registry().remote_workers().answering();
        let mut offered = (0, 0);
        for Seen { worker, stale } in
            self.workers().await?.into_iter().filter(|seen| eligible_workers.contains(&seen.worker.id))
        {
            let providers = worker.providers.len() as u64;
            offered.1 += providers;
            if worker.status == WorkerStatus::Online && !stale && answering.contains(&worker.id) {
                offered.0 += providers;
            }
        }
        Ok(offered)
    }

    /// Returns the metrics of the spawn queue, and the worker of the next spawn.
    pub fn scheduler_stats(&self, stored: Option<&Stored>) -> Scheduler {
        let queue = self.queue_stats();
        Scheduler {
            depth: queue.depth,
            queued_total: queue.queued,
            dequeued_total: queue.dequeued,
            timeouts_total: queue.timed_out,
            wait_total: queue.wait_total,
            wait_max: queue.wait_max,
            worker_id: WorkerId::local().to_string(),
            selected_worker_id: stored.and_then(|stored| stored.selected_worker.as_ref()).map(WorkerId::to_string),
            eligible_workers: stored.map_or(0, |stored| stored.eligible_workers),
        }
    }

    /// Returns the metrics of events.
    pub fn events_stats(&self) -> events::Counts {
        self.events.counts()
    }
}

#[cfg(test)]
mod test {
    use domain::{Capacity, Timestamp};

    use super::*;
    use store::workers::Worker;

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
