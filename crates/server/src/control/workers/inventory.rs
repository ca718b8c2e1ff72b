//! Comparison of the boxes that runtimes hold with the stored sandboxes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{SandboxId, State, StopReason, WorkerId};
use futures_util::{StreamExt, TryStreamExt, stream};
use providers::custom::Custom;
use providers::{Found, Provider};
use serde_json::json;

use crate::control::conflict::Conflict;
use crate::control::error::{Error, Result, provider_error};
use crate::control::service::Control;

/// Deadline for a runtime's inventory.
const INVENTORY_WAIT: Duration = Duration::from_secs(20);
/// Time to wait for the removal of one box; the removal may go on afterwards.
pub(in crate::control) const REMOVAL_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent removals.
const AT_ONCE: usize = 16;

/// Generation of a box without a lease here: below that of every lease.
const UNLEASED: u64 = 0;

/// A box that could not be removed, with the error.
pub(crate) type Kept = (SandboxId, Error);

impl Control {
    /// Compares the boxes of a provider of this server with the stored sandboxes. Boxes that
    /// could not be removed are retried by the next comparison.
    ///
    /// # Errors
    /// If the provider's inventory or the store fails.
    pub(crate) async fn reconcile_provider(self: &Arc<Self>, provider: &str) -> Result<Vec<Kept>> {
        let Some(entry) = self.registry.get(provider) else { return Ok(Vec::new()) };
        let kept = self.compare(entry.provider.as_ref(), provider, &WorkerId::local(), Some(provider), None).await?;
        self.reconcile_snapshots(entry.provider.as_ref()).await?;
        Ok(kept)
    }

    /// Compares the boxes of another worker with the stored sandboxes.
    ///
    /// # Errors
    /// As [`Control::reconcile_provider`].
    pub(crate) async fn reconcile_worker(self: &Arc<Self>, worker: &WorkerId) -> Result<Vec<Kept>> {
        let client = self.registry.remote_workers().client(worker, None);
        let Some(client) = client.map_err(|error| provider_error(worker.as_str(), error))? else {
            return Ok(Vec::new());
        };
        self.compare(client.as_ref(), worker.as_str(), worker, None, Some(&client)).await
    }

    /// Destroys sandboxes that have lost their box, and removes boxes without a sandbox. A
    /// failure of one does not delay the others.
    async fn compare(
        self: &Arc<Self>,
        runtime: &dyn Provider,
        name: &str,
        worker: &WorkerId,
        provider: Option<&str>,
        fenced: Option<&Custom>,
    ) -> Result<Vec<Kept>> {
        let seen = Instant::now();
        // Rows are read first. A box created after this read is in `in_progress`, or has a row below.
        self.settle_pauses(runtime, name, worker, provider).await?;
        let mut rows = self.store.ids_in(&[State::Running, State::Paused], worker, provider).await?;
        let found = listed_by(runtime, name).await?;
        let alive: HashSet<&SandboxId> = found.iter().filter(|found| found.alive).map(|found| &found.id).collect();
        if let Some(provider) = provider {
            self.replace_lost_warm(provider, &alive, seen);
        }
        rows.retain(|row| !alive.contains(row));
        let lost = stream::iter(rows).map(|id| self.end_lost(id, name));
        let mut outcomes: Vec<_> = lost.buffer_unordered(AT_ONCE).collect().await;
        let looks = stream::iter(found)
            .map(async |found| Ok::<_, Error>(self.is_orphan(&found.id).await?.then_some(found.id)))
            .buffer_unordered(AT_ONCE);
        let orphans: Vec<_> = looks.try_filter_map(async |orphan| Ok(orphan)).try_collect().await?;
        if !orphans.is_empty() {
            // A request may have removed one since the first look.
            let still: HashSet<_> = listed_by(runtime, name).await?.into_iter().map(|found| found.id).collect();
            let orphans = orphans.into_iter().filter(|id| still.contains(id));
            let removals = stream::iter(orphans).map(|id| self.remove_orphan(runtime, name, id, fenced));
            outcomes.extend(removals.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await);
        }
        Ok(outcomes.into_iter().filter_map(std::result::Result::err).collect())
    }

    /// Destroys a sandbox whose box has disappeared.
    async fn end_lost(self: &Arc<Self>, id: SandboxId, name: &str) -> Result<(), Kept> {
        let end = async {
            let id = &id;
            let Some(sandbox) =
                self.store.sandbox(id).await?.filter(|row| matches!(row.state, State::Running | State::Paused))
            else {
                return Ok(());
            };
            if self.is_in_hand(id) || !self.is_held(&sandbox).await? {
                return Ok(());
            }
            tracing::warn!(%id, provider = name, "a box has stopped by itself");
            let ended = self.destroy_because(id, StopReason::Vanished);
            // A removal that takes longer goes on, and its row is `destroying`.
            if let Ok(ended) = tokio::time::timeout(REMOVAL_WAIT, ended).await
                && ended?
            {
                self.publish_action("vanished_removed", Some(id), json!({"provider": name}));
            }
            Ok(())
        };
        end.await.map_err(|error| (id.clone(), error))
    }

    /// Returns whether a box belongs to no active sandbox.
    async fn is_orphan(&self, id: &SandboxId) -> Result<bool> {
        // Before the row is read, too: a box of the warm pool leaves the pool when it has a row.
        if self.is_in_hand(id) {
            return Ok(false);
        }
        let row = self.store.sandbox(id).await?;
        Ok(!row.is_some_and(|row| row.state.is_active()) && !self.is_in_hand(id))
    }

    /// Removes a box without a sandbox.
    async fn remove_orphan(
        &self,
        runtime: &dyn Provider,
        name: &str,
        id: SandboxId,
        fenced: Option<&Custom>,
    ) -> Result<(), Kept> {
        if let Some(client) = fenced
            && !self.fence_removal(client, &id).await.map_err(|error| (id.clone(), error))?
        {
            return Ok(());
        }
        match within(REMOVAL_WAIT, runtime.stop(&id)).await {
            Ok(()) => {
                tracing::warn!(%id, provider = name, "removed a box that belongs to no sandbox");
                self.publish_action("orphan_removed", Some(&id), json!({"provider": name}));
                Ok(())
            }
            Err(providers::Error::Conflict(error)) if fenced.is_some() => {
                Err((id, Conflict::HeldElsewhere { cause: error }.into()))
            }
            Err(error) => Err((id, provider_error(name, error))),
        }
    }
}

impl Control {
    /// Has the removal of a box on another worker carry the generation of its lease, so that the worker refuses it
    /// once another control plane has the box. Returns false if the lease has lapsed: then the box is the worker's
    /// to end, and perhaps another's.
    async fn fence_removal(&self, client: &Custom, id: &SandboxId) -> Result<bool> {
        let lease = self.store.lease(id.as_str()).await?;
        if lease.as_ref().is_some_and(|lease| !lease.is_valid(self.now())) {
            tracing::info!(%id, "leaving the box to its worker because the lease on the sandbox has expired");
            return Ok(false);
        }
        client.set_generation(id, lease.map_or(UNLEASED, |lease| lease.generation));
        Ok(true)
    }
}

/// Returns the boxes that a runtime holds.
async fn listed_by(runtime: &dyn Provider, name: &str) -> Result<Vec<Found>> {
    within(INVENTORY_WAIT, runtime.inventory()).await.map_err(|error| provider_error(name, error))
}

/// Waits for a runtime's answer for at most `wait`.
pub(in crate::control) async fn within<T>(
    wait: Duration,
    answer: impl Future<Output = providers::Result<T>>,
) -> providers::Result<T> {
    tokio::time::timeout(wait, answer)
        .await
        .unwrap_or_else(|_| Err(providers::Error::Unavailable(format!("no answer within {} s", wait.as_secs()))))
}
