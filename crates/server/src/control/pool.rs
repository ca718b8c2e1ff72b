//! Pool mode: sandboxes of several users in one box.
//!
//! A sandbox is then a slot in a box. Its place is taken as it is admitted, and
//! [`SharedBoxes`] makes the box and the slot behind what is a provider to everybody
//! else; so a sandbox in a shared box goes the way of any other.

mod shared;

use std::sync::Arc;

use domain::{Denial, OwnerId, SandboxId, Timestamp};
use providers::{Chain, Provider};

use super::inventory::{REMOVAL_WAIT, within};
use super::{Control, ORPHAN_GRACE, Result};
use crate::clock;
use crate::store::{PoolBounds, PoolCounts, PoolPlace, Sandbox, Store};

pub use shared::SharedBoxes;

/// Places without a live sandbox per look at the store.
const STRAYS_BATCH: u32 = 256;

/// How full the pool is, and may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStatus {
    /// What there is.
    pub counts: PoolCounts,
    /// What there may be.
    pub bounds: PoolBounds,
}

impl Control {
    /// How full the pool is; `None` when pool mode is off.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn pool_status(&self) -> Result<Option<PoolStatus>> {
        let Some(bounds) = self.policy.pool else { return Ok(None) };
        Ok(Some(PoolStatus { counts: self.store.pool_counts().await?, bounds }))
    }

    /// Whether users are kept apart from each other.
    pub fn separates_users(&self) -> bool {
        self.policy.pool.is_some()
    }

    /// Whether `user` may know of the sandbox. One that is not there may be known
    /// by everybody not to be there.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn may_know(&self, id: &str, user: &OwnerId) -> Result<bool> {
        let Ok(id) = SandboxId::parse(id) else { return Ok(true) };
        let found = self.store.sandbox(&id).await?;
        Ok(found.is_none_or(|sandbox| sandbox.owner.as_ref() == Some(user)))
    }

    /// The place that a new sandbox needs; `None` when it gets a box of its own.
    pub(super) fn place(&self) -> Option<PoolPlace> {
        let bounds = self.policy.pool?;
        Some(PoolPlace { bounds, new_host: SandboxId::from_entropy(rand::random()) })
    }

    /// Returns why one like `sandbox` would find no place.
    pub(super) async fn lacks_shared_place(&self, sandbox: &Sandbox) -> Result<Option<Denial>> {
        match self.policy.pool {
            Some(bounds) => Ok(self.store.lacks_place(sandbox, bounds).await?),
            None => Ok(None),
        }
    }

    /// Lets the box of a slot live as long as its longest slot, one of which may be
    /// about to live until `at_least`.
    pub(super) async fn keep_host(&self, sandbox: &Sandbox, at_least: Option<Timestamp>) -> Result<()> {
        if !self.separates_users() {
            return Ok(());
        }
        let host = self.store.host_of(&sandbox.id).await?;
        if let (Some(host), Some(entry)) = (host, self.registry.get(&sandbox.provider)) {
            follow(self.store.as_ref(), entry.provider.as_ref(), &host.id, self.now(), at_least).await;
        }
        Ok(())
    }

    /// Gives back the places of what has ended, and removes the boxes that are
    /// empty. Also after pool mode was switched off.
    pub(crate) async fn reconcile_pool(self: &Arc<Self>) -> Result<()> {
        let mut freed = false;
        for (slot, provider) in self.store.pool_strays(STRAYS_BATCH).await? {
            if !self.is_in_hand(&slot) && self.stopped(&slot, &provider).await {
                self.store.leave(&slot).await?;
                freed = true;
            }
        }
        for host in self.store.pool_hosts().await?.into_iter().filter(|host| !host.is_open) {
            if self.stopped(&host.id, &host.provider).await {
                self.store.forget_host(&host.id).await?;
                freed = true;
            }
        }
        if freed {
            self.admission.freed(None);
        }
        Ok(())
    }

    async fn stopped(&self, id: &SandboxId, provider: &str) -> bool {
        // Without its provider nobody can say whether it is gone.
        let Some(entry) = self.registry.get(provider) else { return false };
        let stopped = within(REMOVAL_WAIT, entry.provider.stop(id)).await;
        if let Err(error) = &stopped {
            tracing::warn!(%id, provider, error = %Chain(error), "cannot clean up after a shared box yet");
        }
        stopped.is_ok()
    }
}

/// Sets the box's own end to that of its longest slot, or to `at_least` if that is
/// later. A box that does not listen is noticed by others.
async fn follow(
    store: &dyn Store,
    provider: &dyn Provider,
    host: &SandboxId,
    now: Timestamp,
    at_least: Option<Timestamp>,
) {
    let told = async {
        let stored = store.host_expires_at(host).await.map_err(|error| providers::Error::failed(FOLLOW, error))?;
        let Some(last) = stored.max(at_least) else { return Ok(()) };
        let left = clock::between(now, last);
        provider.guest(host).await?.set_deadline(left + ORPHAN_GRACE).await
    };
    if let Err(error) = told.await {
        tracing::debug!(%host, error = %Chain(&error), "cannot tell a shared box its end");
    }
}

const FOLLOW: &str = "set the end of a shared box";
