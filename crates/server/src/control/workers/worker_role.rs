//! The worker role: sandboxes that a control plane placed on this server.

use std::sync::Arc;

use domain::{SandboxId, StopReason, Timestamp, WorkerId, WorkerStatus};
use providers::Chain;
use providers::custom::ID_LABEL;
use serde_json::json;

use super::registry::{RUNS, earlier};
use crate::control::conflict::Conflict;
use crate::control::error::Result;
use crate::control::service::Control;
use store::clock;
use store::workers::Heartbeat;

/// Maximum number of sandboxes per query.
const BATCH: u32 = 256;

/// A sandbox that a control plane placed on this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its id on this server.
    pub id: SandboxId,
    /// Its id on the control plane, to which the lease belongs.
    pub resource: String,
    /// Time until which this server may run it, by this server's clock.
    pub until: Option<Timestamp>,
}

impl Control {
    /// Records the generation that a write on a sandbox here carries.
    ///
    /// # Errors
    /// [`crate::control::Error::Conflict`] if a higher one was seen: the sender no longer holds the lease.
    pub async fn see_generation(&self, id: &SandboxId, generation: u64) -> Result<()> {
        if self.store.see_generation(id, generation).await? {
            return Ok(());
        }
        Err(Conflict::LeaseOver { sandbox: id.clone(), generation }.into())
    }

    /// Records that a control plane leases a new sandbox. From here on it runs only as long as
    /// its lease is renewed.
    pub(in crate::control) async fn take_up(&self, id: &SandboxId, generation: u64) -> Result<()> {
        self.store.hold_until(id, clock::after(self.now(), self.policy.leases.ttl)).await?;
        self.see_generation(id, generation).await
    }

    /// Returns the active sandboxes that a control plane placed on this server.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn held(&self) -> Result<Vec<Held>> {
        let held = self.store.held().await?;
        let held = held.into_iter().filter_map(|(sandbox, until)| {
            let resource = sandbox.metadata.get(ID_LABEL)?.clone();
            Some(Held { id: sandbox.id, resource, until })
        });
        Ok(held.collect())
    }

    /// Records the time until which this server may run a sandbox.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn hold_until(&self, id: &SandboxId, until: Timestamp) -> Result<()> {
        Ok(self.store.hold_until(id, until).await?)
    }

    /// Returns the heartbeat that this server sends to a control plane, with its status.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn own_offer(&self) -> Result<Heartbeat> {
        let own = self.store.worker(&WorkerId::local()).await?;
        let is_draining = own.is_some_and(|own| own.status == WorkerStatus::Draining);
        let status = Some(if is_draining { WorkerStatus::Draining } else { WorkerStatus::Online });
        let capabilities = RUNS.map(str::to_owned).to_vec();
        Ok(Heartbeat { status, capabilities, ..self.own_beat() })
    }

    /// Ends the sandboxes whose lease has been over for the grace period. By then the control
    /// plane has given them up.
    pub async fn end_what_is_lost(self: &Arc<Self>) {
        let lost = match self.store.lease_expired(earlier(self.now(), self.policy.leases.grace), BATCH).await {
            Ok(lost) => lost,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot check for lost leases");
                return;
            }
        };
        for id in lost {
            if self.is_in_hand(&id) {
                continue;
            }
            tracing::warn!(%id, "ending a sandbox whose lease is lost");
            match self.destroy_because(&id, StopReason::Requested).await {
                Ok(_) => self.publish_action("lease_lost", Some(&id), json!({})),
                // The row is `destroying`, and the reconciler finishes the removal.
                Err(error) => tracing::warn!(%id, error = %Chain(&error), "cannot end the sandbox; retrying later"),
            }
        }
    }
}
