//! Boxes that several users share, and who has a place in which.
//!
//! A place is taken before its box or slot is made, and given back after the
//! slot is gone; so whatever a crash leaves has a row here.

use async_trait::async_trait;
use domain::{Denial, Resources, SandboxId, Timestamp};

use super::{Result, Sandbox};

/// A box that holds slots, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolHost {
    /// Its name.
    pub id: SandboxId,
    /// Whether it takes new slots; else it is being removed, for good.
    pub is_open: bool,
    /// The provider that runs it.
    pub provider: String,
    /// The image of all its slots.
    pub image: String,
    /// The size of each slot.
    pub resources: Resources,
    /// How many slots it was made for.
    pub places: u32,
}

/// How many boxes there may be, and slots in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolBounds {
    /// The most boxes.
    pub hosts_max: u32,
    /// The most slots in a box.
    pub places: u32,
}

/// What a sandbox is admitted to a shared box by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPlace {
    /// How many there may be.
    pub bounds: PoolBounds,
    /// The id of a new box, if it takes one.
    pub new_host: SandboxId,
}

/// How full the pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// Boxes, those too that are being removed.
    pub hosts: u64,
    /// Slots.
    pub slots: u64,
}

/// The transactions about shared boxes. [`super::Store::admit`] takes a place.
#[async_trait]
pub trait PoolStore {
    /// Returns why one like `sandbox` would find no place; `None` if it would find one.
    async fn lacks_place(&self, sandbox: &Sandbox, bounds: PoolBounds) -> Result<Option<Denial>>;

    /// The box in which a sandbox has its place.
    async fn host_of(&self, slot: &SandboxId) -> Result<Option<PoolHost>>;

    /// Gives a place back. The box, if this was the last place in it: it is closed
    /// now and to be removed.
    async fn leave(&self, slot: &SandboxId) -> Result<Option<SandboxId>>;

    /// Forgets a box that was closed and is gone.
    async fn forget_host(&self, host: &SandboxId) -> Result<()>;

    /// All boxes.
    async fn pool_hosts(&self) -> Result<Vec<PoolHost>>;

    /// Places of sandboxes that are not there or no longer active, each with the
    /// provider of its box, at most `limit`.
    async fn pool_strays(&self, limit: u32) -> Result<Vec<(SandboxId, String)>>;

    /// When the last sandbox of a box expires; `None` without any that is alive.
    async fn host_expires_at(&self, host: &SandboxId) -> Result<Option<Timestamp>>;

    /// How full the pool is.
    async fn pool_counts(&self) -> Result<PoolCounts>;
}
