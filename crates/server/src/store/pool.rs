//! Boxes that several users share, and who has a place in which.
//!
//! A place is taken before its box or slot is made, and given back after the
//! slot is gone; so whatever a crash leaves has a row here.

use async_trait::async_trait;
use domain::{Resources, SandboxId, Timestamp};

use super::Result;

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

/// What a sandbox needs of the box that it gets a place in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The sandbox.
    pub slot: &'a SandboxId,
    /// Its provider.
    pub provider: &'a str,
    /// Its image.
    pub image: &'a str,
    /// Its size.
    pub resources: Resources,
}

/// How many boxes there may be, and slots in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolBounds {
    /// The most boxes.
    pub hosts_max: u32,
    /// The most slots in a box.
    pub places: u32,
}

/// How full the pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// Boxes, those too that are being removed.
    pub hosts: u64,
    /// Slots.
    pub slots: u64,
}

/// The transactions about shared boxes.
#[async_trait]
pub trait Pool {
    /// Takes a place in the fullest open box of the same provider, image and size,
    /// else in a new one, which is to have the id `new_host`. `None` if there is
    /// no place and no room for another box.
    ///
    /// - One that has a place keeps it.
    /// - Many at once never get past a bound together.
    async fn place(
        &self,
        wanted: &Wanted<'_>,
        bounds: PoolBounds,
        new_host: &SandboxId,
        at: Timestamp,
    ) -> Result<Option<PoolHost>>;

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
