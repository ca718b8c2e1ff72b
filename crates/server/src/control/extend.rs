//! Extension of a sandbox's lifetime.

use std::time::{Duration, Instant};

use domain::State;

use super::conflict::Conflict;
use super::error::{Error, Result, above};
use super::policy::ORPHAN_GRACE;
use super::resource::Resource;
use super::service::Control;
use crate::operation_metrics::Operation;
use store::clock;
use store::{Applied, Change, Sandbox};

impl Control {
    /// Sets the expiry of a sandbox to `ttl` from now, which may be earlier than before.
    ///
    /// # Errors
    /// [`Error::LimitReached`] above the maximum lifetime, [`Error::NotFound`] once it has
    /// expired.
    pub async fn extend(&self, id: &str, ttl: Duration) -> Result<Sandbox> {
        let found = self.usable(id).await?;
        self.set_lifetime(&found, ttl, false).await
    }

    /// Has a sandbox live for at least `ttl` from now. A longer lifetime stays, whoever sets it meanwhile.
    ///
    /// # Errors
    /// As [`Control::extend`].
    pub(super) async fn lengthen(&self, id: &str, ttl: Duration) -> Result<Sandbox> {
        let found = self.usable(id).await?;
        if found.expires_at >= clock::after(self.now(), ttl) {
            return Ok(found);
        }
        self.set_lifetime(&found, ttl, true).await
    }

    /// Sets the lifetime of a sandbox as it was `found`.
    pub(super) async fn set_lifetime(&self, found: &Sandbox, ttl: Duration, at_least: bool) -> Result<Sandbox> {
        let started = Instant::now();
        let extended = self.extend_found(found, ttl, at_least).await;
        self.record(Operation::Extend, &found.provider, extended.is_ok(), started);
        extended.map_err(|error| self.publish_if_limited("extend", Some(&found.provider), error))
    }

    async fn extend_found(&self, found: &Sandbox, ttl: Duration, at_least: bool) -> Result<Sandbox> {
        let limits = self.limits_of(found.owner.as_ref()).await?;
        limits.ttl(Some(ttl)).map_err(|error| above("ttl", error))?;
        // The box first. If the server stops between the two steps, the box outlives its row,
        // which the reconciler corrects, and never the other way round.
        let guest = self.guest(found).await?;
        self.forget_late_deadline(&found.id).await;
        let _lifetime = self.pauses.lifetimes.take(&found.id).await;
        // It may have been paused or extended since.
        let row = self.living(found.id.as_str()).await?;
        if row.state == State::Paused {
            return Err(Conflict::Paused { sandbox: found.id.to_string() }.into());
        }
        let now = self.now();
        let wanted = clock::after(now, ttl);
        let expires_at = if at_least { wanted.max(row.expires_at) } else { wanted };
        let deadline = clock::between(now, expires_at) + ORPHAN_GRACE;
        guest.set_deadline(deadline).await.map_err(|error| self.guest_error(found, error))?;
        self.keep_host(found, Some(expires_at)).await?;
        match self.apply(&found.id, Change::Extended { expires_at, at_least, now }).await? {
            Applied::Done { sandbox, .. } => {
                if sandbox.expires_at < row.expires_at {
                    self.keep_host(found, None).await?;
                }
                Ok(*sandbox)
            }
            Applied::Missing | Applied::Refused(_) => Err(Error::NotFound(Resource::Sandbox, found.id.to_string())),
        }
    }
}
