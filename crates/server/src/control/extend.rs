//! Extension of a sandbox's lifetime.

use std::time::{Duration, Instant};

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
        let started = Instant::now();
        let extended = self.extend_found(&found, ttl).await;
        self.record(Operation::Extend, &found.provider, extended.is_ok(), started);
        extended.map_err(|error| self.publish_if_limited("extend", Some(&found.provider), error))
    }

    async fn extend_found(&self, found: &Sandbox, ttl: Duration) -> Result<Sandbox> {
        let limits = self.limits_of(found.owner.as_ref()).await?;
        limits.ttl(Some(ttl)).map_err(|error| above("ttl", error))?;
        // The box first. If the server stops between the two steps, the box outlives its row,
        // which the reconciler corrects, and never the other way round.
        let guest = self.guest(found).await?;
        self.forget_late_deadline(&found.id).await;
        guest.set_deadline(ttl + ORPHAN_GRACE).await.map_err(|error| self.guest_error(found, error))?;
        let now = self.now();
        let expires_at = clock::after(now, ttl);
        self.keep_host(found, Some(expires_at)).await?;
        match self.apply(&found.id, Change::Extended { expires_at, now }).await? {
            Applied::Done { sandbox, .. } => {
                if sandbox.expires_at < found.expires_at {
                    self.keep_host(found, None).await?;
                }
                Ok(*sandbox)
            }
            Applied::Missing | Applied::Refused(_) => Err(Error::NotFound(Resource::Sandbox, found.id.to_string())),
        }
    }
}
