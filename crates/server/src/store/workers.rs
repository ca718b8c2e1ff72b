//! Workers and leases, as stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Capacity, Lease, LeaseRefused, OwnerId, SandboxId, Timestamp, WorkerId, WorkerStatus};

use super::{Result, Sandbox};

/// The most workers: whoever has a shared worker token can name any number.
pub const WORKERS_MAX: u64 = 1_000;

/// Where a sandbox may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placing {
    /// Silence after which a worker gets nothing.
    pub stale_after: Duration,
    /// How long the first lease lasts.
    pub lease_ttl: Duration,
    /// Whether it may stay on this server.
    pub here: bool,
    /// The other workers that this server knows how to reach.
    pub reachable: Arc<[WorkerId]>,
}

impl Placing {
    /// Whether `worker` comes into question at all.
    #[must_use]
    pub fn may_use(&self, worker: &WorkerId) -> bool {
        if worker.is_local() { self.here } else { self.reachable.contains(worker) }
    }
}

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The name of its host.
    pub hostname: String,
    /// Whether it takes sandboxes; `None` leaves a worker that drains draining.
    pub status: Option<WorkerStatus>,
    /// The providers that it offers.
    pub providers: Vec<String>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// What it takes.
    pub capacity: Capacity,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub id: WorkerId,
    /// The name of its host.
    pub hostname: String,
    /// Whether it takes sandboxes.
    pub status: WorkerStatus,
    /// The providers that it offers.
    pub providers: Vec<String>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// What it takes.
    pub capacity: Capacity,
    /// When it was heard last.
    pub last_heartbeat: Timestamp,
    /// When it was heard first.
    pub created_at: Timestamp,
    /// When anything of it but the last heartbeat changed.
    pub updated_at: Timestamp,
}

/// What became of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beat {
    /// There are [`WORKERS_MAX`] workers, and this is none of them.
    Full,
    /// It is stored.
    Heard {
        /// The worker as it is now.
        worker: Box<Worker>,
        /// Whether it was not there before, or had been found stale.
        is_news: bool,
    },
}

/// What became of the wish to forget a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// It is.
    Done,
    /// There is none.
    Missing,
    /// It runs so many active sandboxes.
    Busy(u64),
}

/// How many leases there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Those that are not over.
    pub active: u64,
    /// Those that are.
    pub expired: u64,
    /// All by holder.
    pub by_holder: BTreeMap<String, u64>,
}

impl LeaseCounts {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.active + self.expired
    }
}

/// The transactions on workers and leases.
#[async_trait]
pub trait Workers {
    /// Stores what a worker says, at `now`.
    async fn beat(&self, id: &WorkerId, beat: &Heartbeat, now: Timestamp) -> Result<Beat>;

    /// All workers by id.
    async fn workers(&self) -> Result<Vec<Worker>>;

    /// One worker.
    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>>;

    /// The worker that a sandbox would go to at `now`, and how many it could go to.
    async fn place(
        &self,
        provider: &str,
        owner: Option<&OwnerId>,
        now: Timestamp,
        placing: &Placing,
    ) -> Result<(Option<WorkerId>, u64)>;

    /// Takes a sandbox from a worker that was certainly never asked for it, and
    /// places it by the same rules on another, with a lease of a later generation.
    /// `from` gets nothing more until it beats again.
    ///
    /// `None` if nobody else may have it, or it is not being created there any more.
    async fn place_anew(
        &self,
        id: &SandboxId,
        from: &WorkerId,
        now: Timestamp,
        placing: &Placing,
    ) -> Result<Option<Sandbox>>;

    /// Forgets a worker that runs nothing.
    async fn forget_worker(&self, id: &WorkerId) -> Result<Forgotten>;

    /// The workers that were heard last at `heard_by` or before, each once until
    /// it is heard again.
    async fn newly_stale(&self, heard_by: Timestamp) -> Result<Vec<WorkerId>>;

    /// Renews a lease by the rules of [`Lease::renew`]. One on a sandbox that is
    /// no longer wanted is refused as expired.
    async fn renew_lease(
        &self,
        resource: &str,
        holder: &WorkerId,
        now: Timestamp,
        ttl: Duration,
    ) -> Result<std::result::Result<Lease, LeaseRefused>>;

    /// Renews all leases of the server itself that end before `ending_before`,
    /// in one statement; how many. It is the one that grants them, so that one
    /// that is over is simply granted again.
    async fn renew_own_leases(&self, ending_before: Timestamp, until: Timestamp) -> Result<u64>;

    /// Grants leases of other workers anew that ended after `ended_after` and by
    /// `now`, where the worker was heard since and the sandbox is wanted; how many.
    async fn regrant_leases(&self, ended_after: Timestamp, now: Timestamp, until: Timestamp) -> Result<u64>;

    /// The lease on a resource.
    async fn lease(&self, resource: &str) -> Result<Option<Lease>>;

    /// Active sandboxes on other workers whose lease was over by `before`, the
    /// longest over first, at most `limit`.
    async fn lapsed(&self, before: Timestamp, limit: u32) -> Result<Vec<Sandbox>>;

    /// How many leases there are at `now`.
    async fn lease_counts(&self, now: Timestamp) -> Result<LeaseCounts>;

    /// As a worker: notes the generation that a write on a sandbox of ours carries;
    /// `false` if a higher one was seen before.
    async fn see_generation(&self, id: &SandboxId, generation: u64) -> Result<bool>;

    /// As a worker: notes until when we may run a sandbox of ours.
    async fn hold_until(&self, id: &SandboxId, until: Timestamp) -> Result<()>;

    /// As a worker: the active sandboxes that carry a generation or a time, each
    /// with the time until which we may run it.
    async fn held(&self) -> Result<Vec<(Sandbox, Option<Timestamp>)>>;

    /// As a worker: the running sandboxes that we may not run since `before`, at most `limit`.
    async fn overheld(&self, before: Timestamp, limit: u32) -> Result<Vec<SandboxId>>;
}
