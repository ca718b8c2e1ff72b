//! Admission of a sandbox to the store.

use std::time::Duration;

use domain::{Caps, Denial, Room, SandboxEgress, WorkerId};

use super::pool::PoolPlace;
use super::sandboxes::Sandbox;
use super::workers::PlacementFilter;

/// Time for which an [`IdempotencyKey`] refers to its sandbox.
pub const KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A caller's own name for a request, which makes a retry return the first sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The name, unique per owner.
    pub key: String,
    /// Hash of the request. A key used again must come with the same request.
    pub request: String,
}

/// A sandbox to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// The row, in state `creating`, or `running` if its box is there and nothing is left to be done.
    pub sandbox: Sandbox,
    /// Policies on connections out of it.
    pub egress: SandboxEgress,
    /// The global caps; the owner's quota is read with them.
    pub caps: Caps,
    /// The caller's key for the request.
    pub key: Option<IdempotencyKey>,
    /// Workers that it may be placed on.
    pub placement: PlacementFilter,
    /// Place that it needs in a shared box, in pool mode.
    pub pool: Option<PoolPlace>,
}

impl NewSandbox {
    /// Returns whether no other server, and no box that is shared, can take it.
    #[must_use]
    pub fn is_for_here(&self) -> bool {
        self.pool.is_none() && self.placement.here && self.placement.reachable.is_empty()
    }
}

/// Outcome of an admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// It is stored, and leased to this worker.
    Yes(WorkerId),
    /// No worker may take it.
    NoWorker,
    /// A cap is reached.
    Denied(Denial, Room),
    /// A sandbox with this [`IdempotencyKey`] exists.
    KeyTaken,
}
