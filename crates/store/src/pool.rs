//! Boxes that several users share, and the places of sandboxes in them.
//!
//! A place is taken before its box or slot is made, and given back after the slot is gone. A
//! crash therefore leaves no box or slot without a row here.

use async_trait::async_trait;
use domain::{Denial, Resources, SandboxId, Timestamp};

use super::error::Result;
use super::sandboxes::Sandbox;

/// A box that holds slots, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolHost {
    pub id: SandboxId,
    /// True if it takes new slots; a closed box is being removed and does not reopen.
    pub is_open: bool,
    /// Provider that runs it.
    pub provider: String,
    /// Image of all its slots.
    pub image: String,
    /// Size of each slot.
    pub resources: Resources,
    /// Number of slots that it was made for.
    pub places: u32,
}

/// Bounds on the number of shared boxes, and of slots in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolBounds {
    /// Maximum number of boxes.
    pub hosts_max: u32,
    /// Maximum number of slots in a box.
    pub places: u32,
}

/// Parameters for admitting a sandbox to a shared box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPlace {
    pub bounds: PoolBounds,
    /// Id for a new box, if the sandbox needs one.
    pub new_host: SandboxId,
}

/// Numbers of shared boxes and slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// Boxes, including those being removed.
    pub hosts: u64,
    pub slots: u64,
}

/// Transactions on shared boxes. [`super::Store::admit`] takes a place.
#[async_trait]
pub trait PoolStore {
    /// Returns why a sandbox like `sandbox` would find no place; `None` if it would find one.
    async fn lacks_place(&self, sandbox: &Sandbox, bounds: PoolBounds) -> Result<Option<Denial>>;

    /// Returns the box in which a sandbox has its place.
    async fn host_of(&self, slot: &SandboxId) -> Result<Option<PoolHost>>;

    /// Gives a place back. If it was the last place taken in its box, closes the box and returns
    /// it, to be removed.
    async fn leave(&self, slot: &SandboxId) -> Result<Option<SandboxId>>;

    /// Deletes the row of a box that was closed and has been removed.
    async fn forget_host(&self, host: &SandboxId) -> Result<()>;

    async fn pool_hosts(&self) -> Result<Vec<PoolHost>>;

    /// Returns places whose sandbox is missing or no longer active, each with the provider of
    /// its box, at most `limit`.
    async fn pool_strays(&self, limit: u32) -> Result<Vec<(SandboxId, String)>>;

    /// Returns the latest expiry of the sandboxes in a box that are `creating` or `running`;
    /// `None` without any.
    async fn host_expires_at(&self, host: &SandboxId) -> Result<Option<Timestamp>>;

    /// Returns the numbers of boxes and slots.
    async fn pool_counts(&self) -> Result<PoolCounts>;
}
