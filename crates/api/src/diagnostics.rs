//! What the service says of itself to an operator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{OperationFigures, ProviderHealth, QuotaSummary, StringMap, Worker};

/// The state of the whole service, without secrets: no key, no owner, no address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Diagnostics {
    /// When this was put together (RFC 3339, UTC).
    pub generated_at: String,
    /// What runs.
    pub build: Build,
    /// The process.
    pub process: ProcessFigures,
    /// Whether rows can be read and written.
    pub store: StoreHealth,
    /// The limits in force.
    pub limits: ReportedLimits,
    /// Spawns that found no room, and who would get the next one.
    pub scheduler: SchedulerFigures,
    /// How many owners have a quota of their own; null while the store does not answer.
    pub quotas: Option<QuotaSummary>,
    /// The rate limiter.
    pub rate_limit: RateLimitFigures,
    /// What requests hold of the memory that they share.
    pub request_memory: RequestMemoryFigures,
    /// The last check of each provider.
    pub providers: Vec<ProviderHealth>,
    /// The workers; null while the store does not answer.
    pub workers: Option<WorkerFigures>,
    /// The leases; null while the store does not answer.
    pub leases: Option<LeaseFigures>,
    /// The sandboxes; null while the store does not answer.
    pub sandboxes: Option<SandboxFigures>,
    /// The events.
    pub events: EventFigures,
    /// Every operation on every provider since the start.
    pub operations: Vec<OperationFigures>,
    /// By area, the page of the project's documentation that helps.
    pub remediation: StringMap,
    /// What is never shown here.
    pub redactions: Vec<String>,
}

/// The program that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Build {
    /// The release.
    pub version: String,
    /// The operating system, as Go calls it.
    pub goos: String,
    /// The machine, as Go calls it, such as `amd64`.
    pub goarch: String,
}

/// The process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessFigures {
    /// Since the start, such as `1h2m3s`.
    pub uptime: String,
    /// Asynchronous tasks that are alive.
    pub goroutines: u64,
    /// What the allocator holds.
    pub memory: MemoryFigures,
}

/// The memory of the allocator, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryFigures {
    /// In use.
    pub alloc: u64,
    /// Taken from the system, with what is free and not given back yet.
    pub sys: u64,
    /// In pages that hold anything in use.
    pub heap_alloc: u64,
    /// Always 0: nothing is collected.
    pub gc_cycles: u64,
}

/// Whether rows can be read and written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreHealth {
    /// Whether the store answered within two seconds.
    pub healthy: bool,
    /// How long it took, in milliseconds.
    pub latency_ms: u64,
}

/// The limits in force; 0 stands for no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportedLimits {
    /// The most active sandboxes.
    pub max_sandboxes: u64,
    /// The most active sandboxes of one owner.
    pub max_sandboxes_per_owner: u64,
    /// The deadline of a command that names none.
    pub default_exec_timeout: String,
    /// The longest deadline that may be asked for.
    pub max_exec_timeout: String,
    /// The longest lifetime that may be asked for.
    pub max_ttl: String,
    /// The most memory of one sandbox here, in MiB.
    #[serde(default)]
    pub max_memory_mb: u32,
    /// The most virtual CPUs of one sandbox here.
    #[serde(default)]
    pub max_vcpus: u32,
    /// The largest file system of one sandbox here, in MiB.
    #[serde(default)]
    pub max_disk_mb: u32,
    /// What a spawn gets that finds no room: `reject` or `queue`.
    pub spawn_overflow: String,
    /// How long a spawn may wait for room.
    pub spawn_queue_timeout: String,
    /// How many spawns may wait for room at once.
    pub max_spawn_queue: u64,
}

/// Spawns that found no room, and who would get the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchedulerFigures {
    /// What a spawn gets that finds no room: `reject` or `queue`.
    pub spawn_overflow: String,
    /// How many spawns wait now.
    pub spawn_queue_depth: u64,
    /// How many may wait at once.
    pub max_spawn_queue: u64,
    /// How long one may wait.
    pub spawn_queue_timeout: String,
    /// How decisions are taken: `serialized`, one after the other.
    pub admission_control: String,
    /// How many began to wait since the start.
    pub spawn_queued_total: u64,
    /// How many of them found room.
    pub spawn_dequeued_total: u64,
    /// How many of them found none in time.
    pub spawn_queue_timeouts: u64,
    /// How many waits ended with room; the figures below are of these.
    pub spawn_queue_wait_count: u64,
    /// All the time that they took.
    pub spawn_queue_wait_total: String,
    /// The longest of them.
    pub spawn_queue_wait_max: String,
    /// Their mean.
    pub spawn_queue_wait_avg: String,
    /// All the time that these took, in milliseconds.
    pub spawn_queue_wait_total_ms: u64,
    /// The longest of them, in milliseconds.
    pub spawn_queue_wait_max_ms: u64,
    /// Their mean, in milliseconds.
    pub spawn_queue_wait_avg_ms: u64,
    /// The worker that this server is.
    pub worker_id: String,
    /// The worker that the next spawn would go to; empty when none is eligible.
    pub selected_worker_id: String,
    /// How many workers the next spawn could go to.
    pub eligible_workers: u64,
}

/// The rate limiter. Whom a bucket belongs to is never shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RateLimitFigures {
    /// Whether there is a limit.
    pub enabled: bool,
    /// How fast a bucket fills.
    pub requests_per_minute: u32,
    /// How much a bucket holds.
    pub burst: u32,
    /// Whose bucket a request takes from: `owner`, `api_key` or `ip`.
    pub key_by: String,
    /// Callers that are remembered now.
    pub active_buckets: u64,
    /// Requests let through since the start.
    pub allowed_total: u64,
    /// Requests refused since the start.
    pub limited_total: u64,
    /// Callers forgotten since the start.
    pub evicted_total: u64,
    /// How long a bucket is kept that nobody takes from.
    pub bucket_ttl: String,
    /// How often such buckets are looked for.
    pub cleanup_interval: String,
}

/// The memory that requests share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestMemoryFigures {
    /// What all of them may hold, in bytes.
    pub budget_bytes: u64,
    /// What they hold now.
    pub used_bytes: u64,
    /// The most that they held since the start.
    pub peak_bytes: u64,
    /// Requests refused since the start since their callers held too much.
    pub refused_total: u64,
    /// Outputs cut since the start since their callers held too much.
    pub truncated_total: u64,
}

/// The workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerFigures {
    /// All of them.
    pub total: u64,
    /// Those that take sandboxes.
    pub online: u64,
    /// Those that have not been heard of for too long.
    pub stale: u64,
    /// Those that say that they cannot work.
    pub unhealthy: u64,
    /// Each of them.
    pub items: Vec<WorkerItem>,
}

/// A worker, and what it has to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerItem {
    /// The worker.
    #[serde(flatten)]
    pub worker: Worker,
    /// Active sandboxes that it holds.
    pub active_sandboxes: u64,
}

/// The leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseFigures {
    /// All of them.
    pub total: u64,
    /// Those that hold.
    pub active: u64,
    /// Those whose time is over.
    pub expired: u64,
    /// How many each worker holds.
    pub by_holder: BTreeMap<String, u64>,
}

/// The sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxFigures {
    /// All whose rows are kept: destroyed ones for `retention.destroyed`.
    pub total: u64,
    /// Those that count under the caps: `creating`, `running`, `destroying`.
    pub active: u64,
    /// All, by state.
    pub by_state: BTreeMap<String, u64>,
    /// The active ones, by provider.
    pub by_provider: BTreeMap<String, u64>,
    /// The active ones, by worker.
    pub by_worker: BTreeMap<String, u64>,
}

/// The events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventFigures {
    /// Who listens now.
    pub subscribers: u64,
    /// How many are kept for readers that come back.
    pub history_size: u64,
    /// How many there were since the start.
    pub events_total: u64,
}
