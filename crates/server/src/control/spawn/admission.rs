//! Preview of a spawn's admission, and the errors of refusals.

use std::time::Duration;

use domain::{Denial, Room};

use super::SpawnRequest;
use crate::admission::Refused;
use crate::control::conflict::Conflict;
use crate::control::error::{Error, Result};
use crate::control::limit::{Cap, Limit};
use crate::control::service::Control;
use crate::control::unavailable::Unavailable;

/// Outcome that a spawn would have now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// First reason for a refusal; `None` if it would be admitted.
    pub reason: Option<&'static str>,
    /// True if a spawn refused only for `reason` would wait in the queue.
    pub queueable: bool,
    /// Active sandboxes, and the caps.
    pub room: Room,
    /// Maximum lifetime that may be requested.
    pub max_ttl: Duration,
}

impl Control {
    /// Evaluates a spawn without creating anything. The answer may be outdated a moment later.
    ///
    /// # Errors
    /// [`Error::Invalid`] and other errors for a request that could never be spawned.
    pub async fn decide(&self, request: SpawnRequest) -> Result<Decision> {
        let asked = request.options.size;
        let request = self.filled(request).await?;
        let limits = self.limits_of(request.owner.as_ref()).await?;
        let room = self.store.room(request.owner.as_ref(), self.policy.caps).await?;
        let queues = self.policy.queue.enabled;
        let decision = |reason, queueable| Decision { reason, queueable, room, max_ttl: limits.ttl_max };
        if limits.ttl(request.options.ttl).is_err() {
            self.check_options(&request.options)?;
            // An unknown provider is an error of the request, reported also if the lifetime is
            // too long.
            if let Err(error @ Error::NoProvider { .. }) = self.offer(request.options.provider.as_deref()).await {
                return Err(error);
            }
            return Ok(decision(Some("max_ttl"), false));
        }
        let mut lacks_place = None;
        let is_unavailable = match self.plan_filled(request, asked).await {
            Ok(plan) => {
                lacks_place = self.lacks_shared_place(&plan.new.sandbox).await?;
                !self.has_place(&plan.new).await?
            }
            Err(Error::Unavailable(_) | Error::Full(_)) => true,
            Err(error) => return Err(error),
        };
        Ok(match room.admit() {
            Err(denial) => decision(Some(denial.as_str()), queues),
            Ok(()) if is_unavailable => decision(Some("no_eligible_worker"), false),
            // The API has no reason of its own for a full pool.
            Ok(()) => match lacks_place {
                Some(denial) => decision(Some("no_eligible_worker"), self.policy.queue.waits_for(denial)),
                None => decision(None, queues),
            },
        })
    }

    /// Converts a refusal into the caller's error.
    pub(in crate::control) fn refused(&self, refused: Refused) -> Error {
        match refused {
            Refused::Denied(Denial::PoolFull, room) => Unavailable::PoolFull(self.cap(Denial::PoolFull, room)).into(),
            Refused::Denied(denial, room) => Limit::Cap(self.cap(denial, room)).into(),
            Refused::QueueFull(denial, room) => {
                let waiting = self.policy.queue.places.all;
                Limit::QueueFull { cap: self.cap(denial, room), waiting }.into()
            }
            Refused::ShareFull(denial, room, waiting) => {
                Limit::QueueShareFull { cap: self.cap(denial, room), waiting }.into()
            }
            Refused::TimedOut(denial, room) => {
                let waited = self.policy.queue.timeout;
                Limit::QueueTimeout { cap: self.cap(denial, room), waited }.into()
            }
            Refused::NoWorker => Unavailable::NoWorker.into(),
            Refused::KeyTaken => Conflict::KeyInUse.into(),
            Refused::Store(error) => error.into(),
            Refused::Closed => Unavailable::ShuttingDown.into(),
        }
    }

    fn cap(&self, denial: Denial, room: Room) -> Cap {
        match denial {
            Denial::MaxSandboxes => Cap::Sandboxes { max: room.caps.max_sandboxes },
            Denial::MaxSandboxesPerOwner => Cap::SandboxesOfOwner { max: room.caps.max_sandboxes_per_owner },
            Denial::PoolFull => {
                let bounds = self.policy.pool.unwrap_or_default();
                Cap::Pool { boxes: bounds.hosts_max, slots: bounds.places }
            }
            Denial::PoolShare => Cap::PoolShare,
        }
    }
}
