//! Diagnostics: the state of the service, for its operator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{OperationFigures, ProviderHealth, QuotaSummary, StringMap, Worker};

/// State of the whole service. Contains no keys, owners or addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Diagnostics {
    /// Time of this report (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub generated_at: String,
    /// Version and platform of the server.
    pub build: Build,
    /// Uptime, tasks and memory of the server process.
    pub process: ProcessFigures,
    /// Result of a probe of the store.
    pub store: StoreHealth,
    /// The limits in force.
    pub limits: ReportedLimits,
    /// Queue of waiting spawns, and the worker for the next spawn.
    pub scheduler: SchedulerFigures,
    /// Boxes that are kept ready, by entry of the configuration's `warm_pool`.
    pub warm_pool: Vec<WarmPoolFigures>,
    /// Number of owners with a quota; null while the store does not answer.
    pub quotas: Option<QuotaSummary>,
    /// Settings and counters of the rate limiter.
    pub rate_limit: RateLimitFigures,
    /// Memory budget that all requests share, and its use.
    pub request_memory: RequestMemoryFigures,
    /// The last check of each provider.
    pub providers: Vec<ProviderHealth>,
    /// Workers and their sandboxes; null while the store does not answer.
    pub workers: Option<WorkerFigures>,
    /// Counts of leases; null while the store does not answer.
    pub leases: Option<LeaseFigures>,
    /// Counts of sandboxes; null while the store does not answer.
    pub sandboxes: Option<SandboxFigures>,
    /// Subscribers and counts of events.
    pub events: EventFigures,
    /// Outcomes and latencies of every operation on every provider since the start.
    pub operations: Vec<OperationFigures>,
    /// Documentation page that helps, by area.
    pub remediation: StringMap,
    /// Kinds of data that are never shown in this report.
    pub redactions: Vec<String>,
}

/// Version and platform of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Build {
    /// Version of the release.
    pub version: String,
    /// Operating system, by its Go name, such as `linux`.
    pub goos: String,
    /// Architecture, by its Go name, such as `amd64`.
    pub goarch: String,
}

/// Figures of the server process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessFigures {
    /// Time since the start, such as `1h2m3s`.
    pub uptime: String,
    /// Asynchronous tasks that are alive.
    pub goroutines: u64,
    /// Memory of the allocator.
    pub memory: MemoryFigures,
    /// Log lines dropped since the start because stderr could not accept them.
    pub log_lines_dropped: u64,
}

/// The memory of the allocator, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryFigures {
    /// Bytes of live allocations.
    pub alloc: u64,
    /// Bytes taken from the system, including free memory that has not been returned yet.
    pub sys: u64,
    /// Bytes of the heap in memory, in use or free.
    pub heap_alloc: u64,
    /// Always 0, because Tidebox has no garbage collector.
    pub gc_cycles: u64,
}

/// Result of a probe of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreHealth {
    /// True if the store answered within two seconds.
    pub healthy: bool,
    /// Duration of the probe, in milliseconds.
    pub latency_ms: u64,
}

/// The limits in force; 0 means no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportedLimits {
    /// Maximum number of active sandboxes.
    pub max_sandboxes: u64,
    /// Maximum number of active sandboxes of one owner.
    pub max_sandboxes_per_owner: u64,
    /// Deadline of a command whose request names none.
    pub default_exec_timeout: String,
    /// Longest deadline that a request may ask for.
    pub max_exec_timeout: String,
    /// Longest lifetime that a request may ask for.
    pub max_ttl: String,
    /// Maximum memory of one sandbox on this server, in MiB.
    #[serde(default)]
    pub max_memory_mb: u32,
    /// Maximum number of virtual CPUs of one sandbox on this server.
    #[serde(default)]
    pub max_vcpus: u32,
    /// Maximum size of one sandbox's file system on this server, in MiB.
    #[serde(default)]
    pub max_disk_mb: u32,
    /// Handling of a spawn when there is no room: `reject` or `queue`.
    pub spawn_overflow: String,
    /// Longest time that a spawn may wait for room.
    pub spawn_queue_timeout: String,
    /// Maximum number of spawns that wait for room at once.
    pub max_spawn_queue: u64,
}

/// Boxes of an entry of the warm pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmPoolFigures {
    /// Name of the entry.
    pub name: String,
    /// Provider of its boxes; null until a box could be planned.
    pub provider: Option<String>,
    /// Number of boxes to keep ready.
    pub count: u64,
    /// Number of boxes that are ready.
    pub ready: u64,
    /// Age of the oldest box that is ready, in milliseconds; null without one.
    pub oldest_ms: Option<u64>,
    /// Spawns that took a box, since the start.
    pub hits_total: u64,
    /// Spawns that found no box ready and made their own, since the start.
    pub misses_total: u64,
    /// Boxes that were replaced before a spawn took them, since the start: too old, outdated or dead.
    pub replaced_total: u64,
    /// Boxes made from the entry's snapshot since the start, including boxes of spawns that found no box ready.
    pub of_snapshot_total: u64,
    /// Reason why its boxes cannot currently be made; null if they can.
    pub error: Option<String>,
}

/// Queue of waiting spawns, and the worker for the next spawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchedulerFigures {
    /// Handling of a spawn when there is no room: `reject` or `queue`.
    pub spawn_overflow: String,
    /// Spawns that wait now.
    pub spawn_queue_depth: u64,
    /// Maximum number of spawns that wait at once.
    pub max_spawn_queue: u64,
    /// Longest time that a spawn may wait.
    pub spawn_queue_timeout: String,
    /// Order of admission decisions: `serialized`, one after the other.
    pub admission_control: String,
    /// Spawns that entered the queue since the start.
    pub spawn_queued_total: u64,
    /// Queued spawns that found room, since the start.
    pub spawn_dequeued_total: u64,
    /// Queued spawns that found no room in time, since the start.
    pub spawn_queue_timeouts: u64,
    /// Waits that ended with a place; the other `spawn_queue_wait` figures count only these.
    pub spawn_queue_wait_count: u64,
    /// Sum of the waits.
    pub spawn_queue_wait_total: String,
    /// Duration of the longest wait.
    pub spawn_queue_wait_max: String,
    /// Mean duration of a wait.
    pub spawn_queue_wait_avg: String,
    /// Sum of the waits, in milliseconds.
    pub spawn_queue_wait_total_ms: u64,
    /// Longest wait, in milliseconds.
    pub spawn_queue_wait_max_ms: u64,
    /// Mean wait, in milliseconds.
    pub spawn_queue_wait_avg_ms: u64,
    /// Id of this server as a worker.
    pub worker_id: String,
    /// Id of the worker that the next spawn would go to; empty when none is eligible.
    pub selected_worker_id: String,
    /// Number of workers that are eligible for the next spawn.
    pub eligible_workers: u64,
}

/// Settings and counters of the rate limiter. The owners of its buckets are never shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RateLimitFigures {
    /// True if requests are limited.
    pub enabled: bool,
    /// Tokens added to a bucket per minute; a request takes one.
    pub requests_per_minute: u32,
    /// Capacity of a bucket, in tokens.
    pub burst: u32,
    /// Key that selects the bucket of a request: `owner`, `api_key` or `ip`.
    pub key_by: String,
    /// Callers that currently have a bucket.
    pub active_buckets: u64,
    /// Requests admitted since the start.
    pub allowed_total: u64,
    /// Requests refused since the start.
    pub limited_total: u64,
    /// Buckets dropped since the start.
    pub evicted_total: u64,
    /// Time after which an unused bucket is dropped.
    pub bucket_ttl: String,
    /// Interval between searches for unused buckets.
    pub cleanup_interval: String,
}

/// Memory budget that all requests share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestMemoryFigures {
    /// Budget of all requests together, in bytes.
    pub budget_bytes: u64,
    /// Bytes that requests currently hold.
    pub used_bytes: u64,
    /// Peak of the bytes held since the start.
    pub peak_bytes: u64,
    /// Requests refused since the start because their callers held too much memory.
    pub refused_total: u64,
    /// Outputs truncated since the start because their callers held too much memory.
    pub truncated_total: u64,
}

/// Counts of the workers, and the workers themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerFigures {
    /// Number of registered workers.
    pub total: u64,
    /// Workers that accept sandboxes.
    pub online: u64,
    /// Workers whose last heartbeat is too old.
    pub stale: u64,
    /// Workers that report themselves unhealthy.
    pub unhealthy: u64,
    /// The workers, each with its load.
    pub items: Vec<WorkerItem>,
}

/// A worker with its load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerItem {
    /// The worker's own fields.
    #[serde(flatten)]
    pub worker: Worker,
    /// Active sandboxes that the worker holds.
    pub active_sandboxes: u64,
}

/// Counts of leases, by validity and worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseFigures {
    /// Number of leases, valid or expired.
    pub total: u64,
    /// Leases that have not expired.
    pub active: u64,
    /// Leases past their expiry.
    pub expired: u64,
    /// Number of leases, by worker.
    pub by_holder: BTreeMap<String, u64>,
}

/// Counts of sandboxes, by state, provider and worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxFigures {
    /// Sandboxes whose rows are kept; rows of destroyed ones are kept for `retention.destroyed`.
    pub total: u64,
    /// Sandboxes that count towards the limits: `creating`, `running`, `paused` and `destroying` ones.
    pub active: u64,
    /// Number of kept sandboxes, by state.
    pub by_state: BTreeMap<String, u64>,
    /// Number of active sandboxes, by provider.
    pub by_provider: BTreeMap<String, u64>,
    /// Number of active sandboxes, by worker.
    pub by_worker: BTreeMap<String, u64>,
}

/// Subscribers and counts of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventFigures {
    /// Clients that currently read the event stream.
    pub subscribers: u64,
    /// Events kept for clients that reconnect.
    pub history_size: u64,
    /// Events published since the start.
    pub events_total: u64,
}
