//! Workers and leases, as stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Capacity, Lease, LeaseRefused, OwnerId, SandboxId, Timestamp, WorkerId, WorkerStatus};

use super::error::Result;
use super::sandboxes::Sandbox;

/// Maximum number of workers: a client with a shared worker token can register any number of
/// names.
pub const WORKERS_MAX: u64 = 1_000;

/// Workers that a sandbox may be placed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementFilter {
    /// Age of the last heartbeat after which a worker gets no sandboxes.
    pub stale_after: Duration,
    /// Duration of the first lease.
    pub lease_ttl: Duration,
    /// True if this server itself may run it.
    pub here: bool,
    /// Other workers that this server has an address for.
    pub reachable: Arc<[WorkerId]>,
}

impl PlacementFilter {
    /// Returns whether `worker` may be chosen.
    #[must_use]
    pub fn may_use(&self, worker: &WorkerId) -> bool {
        if worker.is_local() { self.here } else { self.reachable.contains(worker) }
    }
}

/// Contents of a worker's heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Hostname of the worker.
    pub hostname: String,
    /// Status to store; `None` leaves a draining worker draining.
    pub status: Option<WorkerStatus>,
    pub providers: Vec<String>,
    pub capabilities: Vec<String>,
    pub capacity: Capacity,
}

/// A worker, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    pub id: WorkerId,
    /// Hostname of the worker.
    pub hostname: String,
    pub status: WorkerStatus,
    pub providers: Vec<String>,
    pub capabilities: Vec<String>,
    pub capacity: Capacity,
    /// Time of the last heartbeat.
    pub last_heartbeat: Timestamp,
    /// Time of the first heartbeat.
    pub created_at: Timestamp,
    /// Time of the last change to anything but the last heartbeat.
    pub updated_at: Timestamp,
}

/// Outcome of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beat {
    /// There are [`WORKERS_MAX`] workers, and this one is not among them.
    Full,
    /// The heartbeat was stored.
    Heard {
        /// Worker after the heartbeat.
        worker: Box<Worker>,
        /// True if the worker was unknown, or had been marked stale.
        is_news: bool,
    },
}

/// Outcome of a worker's deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// The worker was deleted.
    Done,
    /// There is no such worker.
    Missing,
    /// The worker runs this number of active sandboxes.
    Busy(u64),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Leases that have not expired.
    pub active: u64,
    /// Leases that have expired.
    pub expired: u64,
    /// Leases by holder, expired ones included.
    pub by_holder: BTreeMap<String, u64>,
}

impl LeaseCounts {
    /// Returns the number of leases, expired ones included.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.active + self.expired
    }
}

/// Transactions on workers and leases.
#[async_trait]
pub trait Workers {
    /// Stores a worker's heartbeat, received at `now`.
    async fn beat(&self, id: &WorkerId, beat: &Heartbeat, now: Timestamp) -> Result<Beat>;

    /// Returns all workers, ordered by id.
    async fn workers(&self) -> Result<Vec<Worker>>;

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>>;

    /// Returns the worker that a sandbox would be placed on at `now`, and the number of eligible
    /// workers.
    async fn place(
        &self,
        provider: &str,
        owner: Option<&OwnerId>,
        now: Timestamp,
        filter: &PlacementFilter,
    ) -> Result<(Option<WorkerId>, u64)>;

    /// Takes a sandbox from a worker that certainly never received the request, and places it on
    /// another by the same rules, with a lease of a later generation. `from` gets no sandboxes
    /// until its next heartbeat.
    ///
    /// Returns `None` if no other worker is eligible, or the sandbox is no longer being created
    /// on `from`.
    async fn place_anew(
        &self,
        id: &SandboxId,
        from: &WorkerId,
        now: Timestamp,
        filter: &PlacementFilter,
    ) -> Result<Option<Sandbox>>;

    /// Deletes a worker without active sandboxes.
    async fn forget_worker(&self, id: &WorkerId) -> Result<Forgotten>;

    /// Returns the workers whose last heartbeat was at `heard_by` or before. Each is returned
    /// once until it sends another.
    async fn newly_stale(&self, heard_by: Timestamp) -> Result<Vec<WorkerId>>;

    /// Renews a lease by the rules of [`Lease::renew`]. A lease on a sandbox that is being
    /// removed is refused as expired.
    async fn renew_lease(
        &self,
        resource: &str,
        holder: &WorkerId,
        now: Timestamp,
        ttl: Duration,
    ) -> Result<std::result::Result<Lease, LeaseRefused>>;

    /// Renews all leases of this server itself that end before `ending_before`, in one
    /// statement. Returns their number. This server grants the leases, so an expired one of its
    /// own is granted again.
    async fn renew_own_leases(&self, ending_before: Timestamp, until: Timestamp) -> Result<u64>;

    /// Grants leases of other workers again that ended after `ended_after` and by `now`, if the
    /// worker has sent a heartbeat since and the sandbox is not being removed. Returns their
    /// number.
    async fn regrant_leases(&self, ended_after: Timestamp, now: Timestamp, until: Timestamp) -> Result<u64>;

    async fn lease(&self, resource: &str) -> Result<Option<Lease>>;

    /// Returns active sandboxes on other workers whose lease ended by `before`, the earliest end
    /// first, at most `limit`.
    async fn lapsed(&self, before: Timestamp, limit: u32) -> Result<Vec<Sandbox>>;

    /// Returns the numbers of leases at `now`.
    async fn lease_counts(&self, now: Timestamp) -> Result<LeaseCounts>;

    /// Worker role: records the generation that a write on a sandbox here carries. Returns
    /// `false` if a higher one was seen before.
    async fn see_generation(&self, id: &SandboxId, generation: u64) -> Result<bool>;

    /// Worker role: records the time until which this server may run a sandbox.
    async fn hold_until(&self, id: &SandboxId, until: Timestamp) -> Result<()>;

    /// Worker role: returns the active sandboxes with a generation or a lease end, each with the
    /// time until which this server may run it.
    async fn held(&self) -> Result<Vec<(Sandbox, Option<Timestamp>)>>;

    /// Worker role: returns the running sandboxes whose lease here ended by `before`, at
    /// most `limit`.
    async fn lease_expired(&self, before: Timestamp, limit: u32) -> Result<Vec<SandboxId>>;
}
