//! Resume: store the intent, then let the processes go on, for a new lifetime where one was agreed.

use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, State, Timestamp};
use providers::{Chain, Pauses};
use serde_json::json;

use super::pauses_of;
use crate::control::error::Result;
use crate::control::policy::ORPHAN_GRACE;
use crate::control::service::Control;
use crate::control::unavailable::Unavailable;
use crate::events::EventType;
use store::{Change, Sandbox, clock};

/// A sandbox that runs.
#[derive(Debug)]
pub struct Reopened {
    pub sandbox: Sandbox,
    /// True if it was paused before.
    pub was_paused: bool,
}

impl Control {
    /// Lets a paused sandbox go on. One that runs stays as it is.
    ///
    /// # Errors
    /// As [`Control::pause`].
    pub async fn resume(self: &Arc<Self>, id: &str) -> Result<Sandbox> {
        self.resume_for(id, None).await.map(|resumed| resumed.sandbox)
    }

    /// Lets a paused sandbox go on for a new lifetime from now; for what is left of its own without one.
    ///
    /// # Errors
    /// As [`Control::pause`].
    pub(in crate::control) async fn resume_for(
        self: &Arc<Self>,
        id: &str,
        lifetime: Option<Duration>,
    ) -> Result<Reopened> {
        let sandbox = self.pausable(id).await?;
        pauses_of(self.runtime_of(&sandbox).await?.as_ref())?;
        let (control, id) = (Arc::clone(self), sandbox.id);
        let resume = self.tasks.spawn(async move { control.go_on(&id, "resume", lifetime).await });
        resume.await.unwrap_or_else(|_| Err(Unavailable::ShuttingDown.into()))
    }

    /// Lets a paused sandbox go on for a request, for the lifetime that its terms give it then.
    pub(in crate::control) async fn wake(&self, sandbox: &Sandbox) -> Result<Sandbox> {
        let lifetime = match sandbox.terms.as_ref().and_then(|terms| terms.lifetime) {
            Some(lifetime) => Some(self.lifetime_within(sandbox.owner.as_ref(), lifetime).await?),
            None => None,
        };
        self.go_on(&sandbox.id, "request", lifetime).await.map(|resumed| resumed.sandbox)
    }

    async fn go_on(&self, id: &SandboxId, reason: &str, lifetime: Option<Duration>) -> Result<Reopened> {
        let _turn = self.pauses.turns.take(id).await;
        let _lifetime = self.pauses.lifetimes.take(id).await;
        let sandbox = self.pausable(id.as_str()).await?;
        if sandbox.state == State::Running {
            return Ok(Reopened { sandbox, was_paused: false });
        }
        let runtime = self.runtime_of(&sandbox).await?;
        let until = lifetime.map(|lifetime| clock::after(self.now(), lifetime));
        let resumed = self.changed(id, Change::Resumed { until }).await?;
        let pauses = pauses_of(runtime.as_ref())?;
        let before = until.map(|_| sandbox.expires_at);
        self.resume_box(pauses, id, before).await.map_err(|error| self.pause_error(&sandbox, error))?;
        self.publish(EventType::SandboxResumed, Some(id), json!({"provider": sandbox.provider, "reason": reason}));
        // The clock of its deadline may have stood still: while it was on disk, or while another service kept it.
        if pauses.stops_clock() || until.is_some() {
            let left = clock::between(self.now(), resumed.expires_at) + ORPHAN_GRACE;
            let moved = async { runtime.guest(id).await?.set_deadline(left).await };
            moved.await.map_err(|error| self.pause_error(&sandbox, error))?;
        }
        // After a restart, connections of a paused box are served by none.
        if let Err(error) = self.serve_egress(id, sandbox.owner.as_ref()).await {
            tracing::debug!(%id, error = %Chain(&error), "cannot serve the connections of a box; retrying later");
        }
        Ok(Reopened { sandbox: resumed, was_paused: true })
    }

    /// Lets the box of a sandbox go on whose row is running. If it cannot, and still stands still, the row is
    /// paused again, with the end that its lifetime had `before` if that was changed, so that the next request tries
    /// anew.
    pub(super) async fn resume_box(
        &self,
        pauses: &dyn Pauses,
        id: &SandboxId,
        before: Option<Timestamp>,
    ) -> providers::Result<()> {
        let resumed = pauses.resume(id).await;
        if let Err(error) = &resumed
            && !matches!(error, providers::Error::Gone)
            && pauses.paused().await.is_ok_and(|paused| paused.contains(id))
        {
            tracing::warn!(%id, error = %Chain(error), "cannot resume the box; the sandbox stays paused");
            if let Err(error) = self.changed(id, Change::Paused { until: before, if_over_at: None }).await {
                tracing::warn!(%id, error = %Chain(&error), "cannot record that a box is paused; retrying later");
            }
        }
        resumed
    }
}
