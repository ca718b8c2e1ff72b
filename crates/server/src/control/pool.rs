//! Pool mode: sandboxes of several users in one box.
//!
//! In pool mode a sandbox is a slot in a shared box. Its place is taken on admission, and
//! [`SharedBoxes`] makes the box and the slot. It is itself a [`providers::Provider`], so that
//! all other code treats these sandboxes like any others.

mod shared;

use std::sync::Arc;

use domain::{Denial, SandboxId, Timestamp};
use providers::Chain;

use self::shared::follow;
use super::error::Result;
use super::service::Control;
use super::workers::inventory::{REMOVAL_WAIT, within};
use store::{PoolBounds, PoolCounts, PoolPlace, Sandbox};

pub use shared::SharedBoxes;

/// Maximum number of places without a live sandbox per query.
const STRAYS_BATCH: u32 = 256;

/// Fill level of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStatus {
    pub counts: PoolCounts,
    pub bounds: PoolBounds,
}

impl Control {
    /// Returns the fill level of the pool; `None` when pool mode is off.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn pool_status(&self) -> Result<Option<PoolStatus>> {
        let Some(bounds) = self.policy.pool else { return Ok(None) };
        Ok(Some(PoolStatus { counts: self.store.pool_counts().await?, bounds }))
    }

    /// Returns whether users are isolated from each other, as in pool mode.
    pub fn separates_users(&self) -> bool {
        self.policy.pool.is_some()
    }

    /// Returns the parameters of a new sandbox's place in a shared box; `None` when pool mode is
    /// off.
    pub(super) fn place(&self) -> Option<PoolPlace> {
        let bounds = self.policy.pool?;
        Some(PoolPlace { bounds, new_host: SandboxId::from_entropy(rand::random()) })
    }

    /// Returns why a sandbox like `sandbox` would find no place.
    pub(super) async fn lacks_shared_place(&self, sandbox: &Sandbox) -> Result<Option<Denial>> {
        match self.policy.pool {
            Some(bounds) => Ok(self.store.lacks_place(sandbox, bounds).await?),
            None => Ok(None),
        }
    }

    /// Sets the expiry of a slot's box to that of its longest slot, or to `at_least` if that is
    /// later, for a slot that is about to get it.
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

    /// Gives back the places of ended sandboxes, and removes empty boxes. Also after pool mode
    /// was switched off.
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
        // Without the provider, the state of the box is unknown.
        let Some(entry) = self.registry.get(provider) else { return false };
        let stopped = within(REMOVAL_WAIT, entry.provider.stop(id)).await;
        if let Err(error) = &stopped {
            tracing::warn!(%id, provider, error = %Chain(error), "cannot clean up after a shared box; retrying later");
        }
        stopped.is_ok()
    }
}
