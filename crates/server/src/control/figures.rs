//! What the service knows of itself, for those who watch it. One function for
//! each area; none of them looks at more than a bounded number of rows.

use std::time::{Duration, Instant};

use providers::Phase;

use super::{Control, LOCAL_WORKER, Result};
use crate::figures::{self, Leases, Quotas, Scheduler, StoreHealth, Stored, Worker, Workers};
use crate::operations::Operations;

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
            Ok(Stored {
                sandboxes: self.store.counts().await?,
                quotas: self.quotas_figures().await?,
                workers: self.workers_figures().await?,
                leases: self.leases_figures().await?,
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

    /// Spawns that found no room: on a server without a queue, none.
    pub fn scheduler_figures(&self) -> Scheduler {
        Scheduler {
            worker_id: LOCAL_WORKER.to_owned(),
            selected_worker_id: self.local_is_eligible().then(|| LOCAL_WORKER.to_owned()),
            eligible_workers: u64::from(self.local_is_eligible()),
            ..Scheduler::default()
        }
    }

    /// The events.
    pub fn events_figures(&self) -> figures::Events {
        self.events.figures()
    }

    /// Whether a spawn that names no provider could be done here.
    fn local_is_eligible(&self) -> bool {
        self.registry.default_entry().is_some_and(crate::registry::Entry::is_healthy)
    }

    async fn quotas_figures(&self) -> Result<Quotas> {
        Ok(Quotas::default())
    }

    async fn leases_figures(&self) -> Result<Leases> {
        Ok(Leases::default())
    }

    /// A single server is its own only worker.
    async fn workers_figures(&self) -> Result<Workers> {
        let caps = self.policy.caps;
        let providers: Vec<String> =
            self.registry.entries().iter().map(|entry| entry.provider.name().to_owned()).collect();
        let capabilities = ["api", "single_node", "spawn", "exec", "files"].map(str::to_owned).to_vec();
        let local = Worker {
            id: LOCAL_WORKER.to_owned(),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            status: figures::WORKER_ONLINE,
            providers,
            capabilities,
            max_sandboxes: caps.max_sandboxes,
            max_sandboxes_per_owner: caps.max_sandboxes_per_owner,
            last_heartbeat: self.now(),
            created_at: self.started_at,
            updated_at: self.now(),
            stale: false,
        };
        Ok(Workers { items: vec![local] })
    }
}
