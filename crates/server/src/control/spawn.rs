//! Spawn: decide, store the row, start the box, store the outcome.

pub(super) mod admission;
mod admit;
pub(super) mod in_progress;
mod make;
mod plan;
pub(super) mod prepare;

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{
    Asker, EgressPolicy, OwnerId, PrepareCommand, ProcessDefaults, SandboxId, SpawnOptions, StopReason, Terms,
};
use providers::{Chain, Phase, Spec};
use serde_json::json;
use store::{IdempotencyKey, NewSandbox, Sandbox, Snapshot};
use tokio::sync::mpsc;

use super::conflict::Conflict;
use super::error::{Error, Result};
use super::service::Control;
use super::wait::{WAIT_MAX, WaitFor};
use super::warm::pool::WarmCheck;
use crate::events::EventType;
use crate::operation_metrics::Operation;

/// A spawn request.
#[derive(Debug, Clone, Default)]
pub struct SpawnRequest {
    /// Options of the sandbox; for those left out the template's count, else the server's defaults.
    pub options: SpawnOptions,
    /// Owner charged for the sandbox.
    pub owner: Option<OwnerId>,
    /// True if the caller holds a key of the owner, and may use nothing of others.
    pub only_own: bool,
    /// Name of the template: one of the owner, else the operator's.
    pub template: Option<String>,
    /// The caller's own key for this request.
    pub key: Option<IdempotencyKey>,
    /// Generation of the lease, if a control plane sends the request.
    pub generation: Option<u64>,
    /// Caller, whose share of bounded places is limited.
    pub asker: Option<Asker>,
    /// Policy of the template on connections, which the request's cannot widen.
    pub template_egress: Option<EgressPolicy>,
    /// Id of the snapshot that the box is made of.
    pub snapshot: Option<String>,
    /// The snapshot that the box is made of.
    pub source: Option<Source>,
    /// Defaults of processes that a build gave the template.
    pub defaults: ProcessDefaults,
    /// Rules that the sandbox lives by besides its options.
    pub terms: Option<Terms>,
}

/// A snapshot that a box is made of.
#[derive(Debug, Clone)]
pub enum Source {
    /// Snapshot for a box of the provider that keeps it.
    Kept(Snapshot),
    /// Snapshot for a box of another provider, which is made of an image of its files.
    Image(Snapshot),
}

/// A sandbox that was spawned.
#[derive(Debug, Clone)]
pub struct Spawned {
    pub sandbox: Sandbox,
    /// Start-up phases with their durations, in order.
    pub phases: Vec<Phase>,
}

/// A box of the warm pool that was given to a sandbox.
pub(super) struct Claim {
    /// Entry of the pool that the box was of.
    pub(super) entry: usize,
    /// Check of the box, which may have died meanwhile.
    pub(super) check: WarmCheck,
}

/// A validated request, before admission.
pub(super) struct Plan {
    pub(super) new: NewSandbox,
    pub(super) spec: Spec,
    pub(super) ttl: Duration,
    /// Commands that run before the sandbox counts as running.
    pub(super) prepare: Vec<PrepareCommand>,
    generation: Option<u64>,
    /// Snapshot of which an image is made first.
    pub(super) imaged: Option<Snapshot>,
}

impl Control {
    /// Spawns a sandbox, or returns the one that an earlier request with the same key spawned.
    ///
    /// The box is started by a task of its own. If the caller goes away meanwhile, the sandbox
    /// is removed again, at any step.
    ///
    /// # Errors
    /// [`Error::LimitReached`] when a cap or the maximum lifetime forbids it, [`Error::Invalid`],
    /// [`Error::InvalidImage`] and [`Error::NotSupported`] for a request that no box can satisfy,
    /// [`Error::PrepareFailed`], [`Error::Unavailable`] without a healthy provider,
    /// [`Error::Conflict`] for a key used with another request.
    pub async fn spawn(self: &Arc<Self>, request: SpawnRequest) -> Result<Spawned> {
        let started = Instant::now();
        if let Some(found) = self.spawned_before(&request).await? {
            return Ok(found);
        }
        let repeated = request.key.is_some().then(|| request.clone());
        let plan = match self.plan(request).await {
            Ok(plan) => plan,
            Err(error) => return Err(self.publish_if_limited("spawn", None, error)),
        };
        let provider = plan.new.sandbox.provider.clone();
        let outcome = async {
            let (plan, phases) = self.with_image_of_snapshot(plan).await?;
            self.admit_and_make(plan, started, phases).await
        };
        let outcome = outcome.await;
        // Of two concurrent requests with the same key, one creates the sandbox.
        if let (Err(Error::Conflict(_)), Some(request)) = (&outcome, repeated)
            && let Some(found) = self.spawned_before(&request).await?
        {
            return Ok(found);
        }
        self.record(Operation::Spawn, &provider, outcome.is_ok(), started);
        outcome.map_err(|error| self.publish_if_limited("spawn", Some(&provider), error))
    }

    /// Publishes a resource-limit event if `error` is [`Error::LimitReached`], and returns
    /// `error`.
    pub(super) fn publish_if_limited(&self, operation: &str, provider: Option<&str>, error: Error) -> Error {
        if let Error::LimitReached(_) = &error {
            self.publish(EventType::ResourceLimit, None, json!({"operation": operation, "provider": provider}));
        }
        error
    }

    /// Returns the sandbox of the request's key, once it is made.
    async fn spawned_before(&self, request: &SpawnRequest) -> Result<Option<Spawned>> {
        let Some(key) = &request.key else { return Ok(None) };
        let Some((made_for, id)) = self.store.keyed(request.owner.as_ref(), &key.key, self.now()).await? else {
            return Ok(None);
        };
        if made_for != key.request {
            return Err(Conflict::KeyReused.into());
        }
        let gone = || Error::Conflict(Conflict::KeyEnded { sandbox: id.clone() });
        match self.wait(id.as_str(), WaitFor::Made, WAIT_MAX).await {
            Ok(sandbox) if sandbox.expires_at > self.now() => Ok(Some(Spawned { sandbox, phases: Vec::new() })),
            Ok(_) => Err(gone()),
            // A sandbox that failed or was abandoned has freed its key.
            Err(Error::Conflict(_) | Error::NotFound(..)) => {
                match self.store.keyed(request.owner.as_ref(), &key.key, self.now()).await? {
                    Some((_, still)) if still == id => Err(gone()),
                    _ => Ok(None),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Removes sandboxes that were admitted after their callers had gone.
    pub async fn remove_abandoned(self: Arc<Self>, mut abandoned: mpsc::UnboundedReceiver<SandboxId>) {
        while let Some(id) = abandoned.recv().await {
            self.abandon(&id).await;
        }
    }

    /// Removes a sandbox whose caller has gone. If it fails, the reconciler removes the sandbox.
    async fn abandon(self: &Arc<Self>, id: &SandboxId) {
        if let Err(error) = self.destroy_because(id, StopReason::Abandoned).await {
            tracing::warn!(%id, error = %Chain(&error), "cannot remove an abandoned sandbox; retrying later");
        }
    }
}
