//! Statistics of the service as plain values: one snapshot for each area, made by the area that
//! counts. None of them contains an owner, a key or an address.

use std::time::Duration;

/// Spawns that found no room, and the worker that would get the next one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheduler {
    /// Spawns that wait now.
    pub depth: u64,
    /// Spawns that began to wait.
    pub queued_total: u64,
    /// Waiting spawns that found room.
    pub dequeued_total: u64,
    /// Waiting spawns that found none in time.
    pub timeouts_total: u64,
    /// Time that those which found room have waited, in total.
    pub wait_total: Duration,
    /// The longest of these waits.
    pub wait_max: Duration,
    /// Id of this process as a worker.
    pub worker_id: String,
    /// The worker that the next spawn would go to; `None` when none is eligible.
    pub selected_worker_id: Option<String>,
    /// Number of workers that the next spawn could go to.
    pub eligible_workers: u64,
}

/// Counts of the rate limiter since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Callers that have a bucket now.
    pub active_buckets: u64,
    /// Requests that it let through.
    pub allowed_total: u64,
    /// Requests that it refused.
    pub limited_total: u64,
    /// Callers whose buckets were removed.
    pub evicted_total: u64,
}

/// Use of the memory budget that all requests share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestMemory {
    /// Bound of all of them together, in bytes.
    pub budget_bytes: u64,
    /// Bytes that they hold now.
    pub used_bytes: u64,
    /// The most that they held since the start.
    pub peak_bytes: u64,
    /// Requests refused since the start because their callers held too much.
    pub refused_total: u64,
    /// Outputs cut since the start because their callers held too much.
    pub truncated_total: u64,
}

/// Result of one query of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHealth {
    /// True if it answered in time.
    pub healthy: bool,
    /// Time that it took, or was waited for.
    pub latency: Duration,
}
