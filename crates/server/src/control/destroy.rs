//! Destroy: store the intent, remove the box, store the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{OwnerId, SandboxId, State, StopReason};
use futures_util::{FutureExt, StreamExt, stream};
use providers::Chain;

use super::conflict::Conflict;
use super::error::{Error, Result};
use super::guest::access::runtime_error;
use super::resource::Resource;
use super::service::{Control, Removal};
use super::unavailable::Unavailable;
use crate::operation_metrics::Operation;
use store::{Applied, Change, Sandbox};

/// Longest wait for a removed box to make room for its row on a full disk.
pub(super) const FREEING_MAX: Duration = Duration::from_secs(10);
/// Pause between two attempts to write a row to a full disk.
const FREED_LOOK: Duration = Duration::from_millis(50);

impl Control {
    /// Destroys a sandbox. Succeeds again for one that is destroyed or expired, while its row is
    /// kept.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown id, and the provider's error if the removal failed.
    /// Then the sandbox stays `destroying` and the removal is retried.
    pub async fn destroy(self: &Arc<Self>, id: &str) -> Result<()> {
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let id = SandboxId::parse(id).map_err(|_| missing())?;
        // A failed sandbox has no state `destroying`, so the rest of its box is removed first.
        let found = self.store.sandbox(&id).await?.ok_or_else(missing)?;
        if found.state == State::Failed {
            match self.stop_box(&found).await {
                // A worker that is unreachable ends by itself a sandbox whose lease has expired.
                Err(Error::Unavailable(_)) if !found.worker.is_local() => {}
                stopped => stopped?,
            }
        }
        let requested = self.stop_requested(StopReason::Requested);
        let applied = match self.apply(&id, requested.clone()).await {
            // What the box takes of the full disk is room for its row.
            Err(Error::Full(_)) if found.state.is_active() => {
                self.stop_box(&found).await?;
                self.apply_once_freed(&found, requested).await
            }
            applied => applied,
        };
        match applied? {
            Applied::Missing => Err(missing()),
            Applied::Refused(refusal) => Err(Conflict::Transition(refusal).into()),
            Applied::Done { sandbox, .. } if sandbox.state == State::Destroyed => Ok(()),
            Applied::Done { sandbox, .. } => self.remove(&sandbox).await,
        }
    }

    fn stop_requested(&self, reason: StopReason) -> Change {
        Change::StopRequested { reason, now: self.now() }
    }

    /// Destroys a sandbox for an internal reason, if it still holds. Returns whether there was
    /// anything to remove.
    pub(crate) async fn destroy_because(self: &Arc<Self>, id: &SandboxId, reason: StopReason) -> Result<bool> {
        match self.begin_destroy(id, reason).await? {
            Some(sandbox) => self.remove(&sandbox).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Stores that a sandbox is to be removed for an internal reason, if it still holds. Returns
    /// the sandbox if there is anything to remove.
    pub(crate) async fn begin_destroy(&self, id: &SandboxId, reason: StopReason) -> Result<Option<Sandbox>> {
        match self.apply(id, self.stop_requested(reason)).await? {
            Applied::Done { sandbox, .. } if sandbox.state != State::Destroyed => {
                tracing::info!(%id, ?reason, "destroying a sandbox");
                Ok(Some(*sandbox))
            }
            Applied::Done { .. } | Applied::Missing | Applied::Refused(_) => Ok(None),
        }
    }

    /// Stores that a fault ended a sandbox. Returns the sandbox if its box is to be removed now,
    /// with [`Control::clear_away`].
    pub(crate) async fn fail(&self, id: &SandboxId, error: &str) -> Result<Option<Sandbox>> {
        let broke = Change::Broke { error: error.to_owned(), at: self.now() };
        match self.apply(id, broke).await? {
            Applied::Done { sandbox, .. } => Ok(Some(*sandbox)),
            Applied::Missing | Applied::Refused(_) => Ok(None),
        }
    }

    /// Removes the box of a failed sandbox, and waits until its provider is idle. The provider
    /// then also removes the boxes that it keeps prepared, which take disk space too.
    pub(crate) async fn clear_away(&self, sandbox: &Sandbox) -> Result<()> {
        self.stop_box(sandbox).await?;
        if let Some(entry) = self.registry.get(&sandbox.provider) {
            entry.provider.idle().await;
        }
        Ok(())
    }

    /// Removes the box of a sandbox in state `destroying`. Concurrent callers wait for the same
    /// removal, which goes on without them.
    pub(crate) async fn remove(self: &Arc<Self>, sandbox: &Sandbox) -> Result<()> {
        let removal = {
            let mut removing = self.removing.lock();
            if let Some(removal) = removing.get(&sandbox.id) {
                removal.clone()
            } else {
                let removal = self.begin_removal(sandbox.clone());
                removing.insert(sandbox.id.clone(), removal.clone());
                removal
            }
        };
        removal.await.map_err(shared)
    }

    fn begin_removal(self: &Arc<Self>, sandbox: Sandbox) -> Removal {
        let control = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let started = Instant::now();
            let outcome = control.stop_and_record(&sandbox).await;
            control.record(Operation::Destroy, &sandbox.provider, outcome.is_ok(), started);
            // Here, since the callers may have left.
            if let Err(error) = &outcome {
                tracing::warn!(id = %sandbox.id, error = %Chain(error), "cannot remove a sandbox; retrying later");
            }
            control.removing.lock().remove(&sandbox.id);
            outcome.map_err(Arc::new)
        });
        async move { task.await.unwrap_or_else(|_| Err(Arc::new(Unavailable::ShuttingDown.into()))) }.boxed().shared()
    }

    async fn stop_and_record(&self, sandbox: &Sandbox) -> Result<()> {
        self.stop_box(sandbox).await?;
        self.apply_once_freed(sandbox, Change::Stopped { at: self.now() }).await?;
        Ok(())
    }

    /// Stores a change of a sandbox whose box is removed. On a full disk it takes the space that is kept for
    /// that, and waits for the space of the box.
    async fn apply_once_freed(&self, sandbox: &Sandbox, change: Change) -> Result<Applied> {
        let begun = Instant::now();
        loop {
            match self.apply(&sandbox.id, change.clone()).await {
                Err(Error::Full(_)) if self.store.free_reserve().await => {}
                Err(Error::Full(_)) if begun.elapsed() < FREEING_MAX => self.await_freed(&sandbox.provider).await,
                applied => return applied,
            }
        }
    }

    /// Waits until a provider has deleted what it removed, and a moment for the disk to show it.
    pub(super) async fn await_freed(&self, provider: &str) {
        if let Some(entry) = self.registry.get(provider) {
            // Files that take longer are looked at again.
            let _ = tokio::time::timeout(FREEING_MAX, entry.provider.idle()).await;
        }
        tokio::time::sleep(FREED_LOOK).await;
    }

    pub(super) async fn stop_box(&self, sandbox: &Sandbox) -> Result<()> {
        let runtime = self.runtime_of(sandbox).await?;
        runtime.stop(&sandbox.id).await.map_err(|error| runtime_error(sandbox, error))
    }

    /// Destroys expired sandboxes that have not been removed yet, and pauses those whose terms say so. Returns the
    /// number of those destroyed; for a `viewer` only of those that are its own.
    ///
    /// # Errors
    /// Only if the store fails. A failed removal is retried by the reconciler and still counts.
    pub async fn prune(self: &Arc<Self>, viewer: Option<&OwnerId>) -> Result<u64> {
        let mut pruned = 0;
        loop {
            let due = self.store.due(self.now(), PRUNE_BATCH).await?;
            if due.is_empty() {
                return Ok(pruned);
            }
            let mut doomed = Vec::new();
            for id in due {
                if !self.pause_at_end(&id).await? {
                    doomed.extend(self.begin_destroy(&id, StopReason::Expired).await?);
                }
            }
            if doomed.is_empty() {
                // Those that are left are being paused.
                return Ok(pruned);
            }
            let is_counted = |sandbox: &&Sandbox| viewer.is_none_or(|viewer| sandbox.owner.as_ref() == Some(viewer));
            pruned += doomed.iter().filter(is_counted).count() as u64;
            let removals = stream::iter(doomed).map(|sandbox| async move {
                // A removal that takes longer goes on; a failed one is retried by the
                // reconciler.
                drop(tokio::time::timeout(PRUNE_WAIT, self.remove(&sandbox)).await);
            });
            removals.buffer_unordered(PRUNED_AT_ONCE).collect::<Vec<()>>().await;
        }
    }
}

/// Maximum number of rows per query.
const PRUNE_BATCH: u32 = 256;
/// Maximum number of concurrent removals of a prune.
const PRUNED_AT_ONCE: usize = 16;
/// Time that a prune waits for one removal, so that a hanging provider does not block it.
const PRUNE_WAIT: Duration = Duration::from_secs(2);

/// Returns the error of a removal that several callers waited for.
fn shared(error: Arc<Error>) -> Error {
    Arc::try_unwrap(error).unwrap_or_else(|error| {
        if let Error::Provider { provider, action, source } = &*error {
            let (provider, source) = (provider.clone(), Arc::clone(source));
            return Error::Provider { provider, action, source };
        }
        if let Error::Unavailable(unavailable) = &*error {
            return unavailable.clone().into();
        }
        Unavailable::Removal { cause: error.to_string() }.into()
    })
}
