//! What the service counts, as plain values: one snapshot for each area, made
//! by the area that counts and read by whoever reports. No owner, no key and no
//! address is in any of them.

use std::time::Duration;

/// Spawns that found no room, and who would get the next one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheduler {
    /// How many wait now.
    pub depth: u64,
    /// How many began to wait.
    pub queued_total: u64,
    /// How many of them found room.
    pub dequeued_total: u64,
    /// How many of them found none in time.
    pub timeouts_total: u64,
    /// All the time that those who found room had waited.
    pub wait_total: Duration,
    /// The longest of these waits.
    pub wait_max: Duration,
    /// The worker that this process is.
    pub worker_id: String,
    /// The worker that the next spawn would go to; `None` when none is eligible.
    pub selected_worker_id: Option<String>,
    /// How many workers the next spawn could go to.
    pub eligible_workers: u64,
}

/// What the rate limiter did since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Callers that are remembered now.
    pub active_buckets: u64,
    /// Requests that it let through.
    pub allowed_total: u64,
    /// Requests that it refused.
    pub limited_total: u64,
    /// Callers that it has forgotten.
    pub evicted_total: u64,
}

/// Use of the memory that all requests share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestMemory {
    /// Bound of all of them together, in bytes.
    pub budget_bytes: u64,
    /// Bytes that they hold now.
    pub used_bytes: u64,
    /// The most that they held since the start.
    pub peak_bytes: u64,
    /// Requests refused since the start since their callers held too much.
    pub refused_total: u64,
    /// Outputs cut since the start since their callers held too much.
    pub truncated_total: u64,
}

/// A look at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHealth {
    /// Whether it answered in time.
    pub healthy: bool,
    /// How long it took, or was waited for.
    pub latency: Duration,
}
