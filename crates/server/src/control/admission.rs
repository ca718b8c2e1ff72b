//! Whether a spawn would be admitted, and in which words it is not.

use std::time::Duration;

use domain::{AboveCeiling, AboveMaximum, Denial, Room, format_duration};

use super::create::SpawnRequest;
use super::{Control, Error, Result};
use crate::admission::Refused;

/// What would become of a spawn right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The first reason that stands in the way.
    pub reason: Option<&'static str>,
    /// Whether a spawn that is in the way of nothing but `reason` would wait.
    pub queueable: bool,
    /// What is active, and the caps.
    pub room: Room,
    /// The longest lifetime that may be asked for.
    pub max_ttl: Duration,
}

impl Control {
    /// Decides on a spawn and makes nothing. What the answer says may be
    /// otherwise a moment later.
    ///
    /// # Errors
    /// [`Error::Invalid`] and the like for a request that no spawn could be.
    pub async fn decide(&self, request: SpawnRequest) -> Result<Decision> {
        let request = self.with_template(request).await?;
        let limits = self.limits_of(request.owner.as_ref()).await?;
        let room = self.store.room(request.owner.as_ref(), self.policy.caps).await?;
        let queues = self.policy.queue.enabled;
        let decision = |reason, queueable| Decision { reason, queueable, room, max_ttl: limits.ttl_max };
        if limits.ttl(request.ttl).is_err() {
            self.check_shape(&request)?;
            // An unknown provider is a mistake whatever the lifetime.
            if let Err(error @ Error::NoProvider { .. }) = self.offer(request.provider.as_deref()).await {
                return Err(error);
            }
            return Ok(decision(Some("max_ttl"), false));
        }
        let mut lacks_place = None;
        let is_unavailable = match self.plan(request).await {
            Ok(plan) => {
                lacks_place = self.lacks_shared_place(plan.sandbox()).await?;
                !self.has_place(&plan).await?
            }
            Err(Error::Unavailable(_) | Error::Full(_)) => true,
            Err(error) => return Err(error),
        };
        Ok(match room.admit() {
            Err(denial) => decision(Some(denial.as_str()), queues),
            Ok(()) if is_unavailable => decision(Some("no_eligible_worker"), false),
            // The API has no word of its own for it.
            Ok(()) => match lacks_place {
                Some(denial) => decision(Some("no_eligible_worker"), self.policy.queue.waits_for(denial)),
                None => decision(None, queues),
            },
        })
    }

    /// What a refusal means to the caller.
    pub(super) fn refused(&self, refused: Refused) -> Error {
        match refused {
            Refused::Denied(Denial::PoolFull, room) => {
                Error::Unavailable(format!("{}; destroy one or try later", self.cap(Denial::PoolFull, room)))
            }
            Refused::Denied(denial, room) => {
                Error::LimitReached(format!("{}; destroy one or try later", self.cap(denial, room)))
            }
            Refused::QueueFull(denial, room) => Error::LimitReached(format!(
                "{}, and {} spawns wait already (`defaults.max_spawn_queue`); try later",
                self.cap(denial, room),
                self.policy.queue.places.all
            )),
            Refused::ShareFull(denial, room, own) => Error::LimitReached(format!(
                "{}, and {own} spawns of this owner wait already, which is its share of the queue \
                 (`defaults.max_spawn_queue_per_owner`); wait for these, or try later",
                self.cap(denial, room)
            )),
            Refused::TimedOut(denial, room) => Error::LimitReached(format!(
                "{}, and no place came free within {} (`defaults.spawn_queue_timeout`); try again",
                self.cap(denial, room),
                format_duration(self.policy.queue.timeout)
            )),
            Refused::NoWorker => Error::Unavailable(
                "no worker can take this sandbox: none that offers the provider is online, heard of and below its \
                 capacity; GET /api/v1/workers shows them"
                    .to_owned(),
            ),
            Refused::KeyTaken => Error::Conflict("`Idempotency-Key` is in use; try again".to_owned()),
            Refused::Store(error) => error.into(),
            Refused::Closed => Error::Unavailable("the server is shutting down".to_owned()),
        }
    }

    fn cap(&self, denial: Denial, room: Room) -> String {
        match denial {
            Denial::MaxSandboxes => {
                format!("the server has its maximum of {} active sandboxes", room.caps.max_sandboxes)
            }
            Denial::MaxSandboxesPerOwner => {
                format!("this owner has its maximum of {} active sandboxes", room.caps.max_sandboxes_per_owner)
            }
            Denial::PoolFull => {
                let bounds = self.policy.pool.unwrap_or_default();
                format!(
                    "the pool is full: {} boxes for {} users each (`pool.max_vms`, `pool.max_users_per_vm`), and none \
                     of this size has a place",
                    bounds.hosts_max, bounds.places
                )
            }
            Denial::PoolShare => {
                "none of this owner's boxes of the pool has a place of this size, and those that hold \
                                  this owner alone and are not full are as many as are free; use a size that you \
                                  have already"
                    .to_owned()
            }
        }
    }
}

/// Returns the error of a size above its ceiling. Waiting does not cure it.
pub(super) fn too_large(above: AboveCeiling) -> Error {
    let AboveCeiling { field, max } = above;
    Error::LimitReached(match field {
        "disk_mb" => format!("`disk_mb` is above the maximum of {max}, or 0, which is no bound; ask for 1 to {max}"),
        _ => format!("`{field}` is above the maximum of {max}; ask for {max} or less"),
    })
}

/// The error of a lifetime or deadline above its maximum. Waiting does not cure it.
pub(super) fn above(field: &str, above: AboveMaximum) -> Error {
    let max = format_duration(above.max);
    Error::LimitReached(format!("`{field}` is above the maximum of {max}; ask for {max} or less"))
}
