//! Figures for programs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    EventFigures, LeaseFigures, QuotaSummary, RateLimitFigures, SandboxFigures, SchedulerFigures, WorkerFigures,
};

/// The figures of the service, without secrets: no key, no owner, no address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// Since the start, such as `1h2m3s`.
    pub uptime: String,
    /// Asynchronous tasks that are alive.
    pub goroutines: u64,
    /// Bytes that the allocator has in use.
    pub memory_alloc: u64,
    /// Bytes that the allocator has taken from the system.
    pub memory_sys: u64,
    /// Bytes in pages that hold anything in use.
    pub memory_heap_alloc: u64,
    /// Always 0: nothing is collected.
    pub gc_cycles: u64,
    /// The sandboxes; null while the store does not answer.
    pub sandboxes: Option<SandboxFigures>,
    /// The providers.
    pub providers: ProviderFigures,
    /// The workers; null while the store does not answer.
    pub workers: Option<WorkerFigures>,
    /// The leases; null while the store does not answer.
    pub leases: Option<LeaseFigures>,
    /// The events.
    pub events: EventFigures,
    /// Spawns that found no room, and who would get the next one.
    pub scheduler: SchedulerFigures,
    /// How many owners have a quota of their own; null while the store does not answer.
    pub quotas: Option<QuotaSummary>,
    /// The rate limiter.
    pub rate_limit: RateLimitFigures,
    /// Every operation on every provider since the start.
    pub operations: Vec<OperationFigures>,
}

/// The providers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderFigures {
    /// How many there are.
    pub total: u64,
    /// How many can make sandboxes now.
    pub healthy: u64,
    /// Each of them.
    pub items: Vec<ProviderItem>,
}

/// A provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderItem {
    /// Its name.
    pub name: String,
    /// Whether it can make sandboxes now.
    pub healthy: bool,
    /// Whether it is used when a request names none.
    pub default: bool,
}

/// One operation on one provider since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationFigures {
    /// What was done: `spawn`, `exec`, `exec_stream`, `destroy`, `extend`, `file_*` or `logs`.
    pub operation: String,
    /// The provider that did it.
    pub provider: String,
    /// How often it went well.
    pub success_total: u64,
    /// How often it did not. A command that ends with another code than 0 went well.
    pub failure_total: u64,
    /// How often in all.
    pub latency_count: u64,
    /// All the time that it took, in milliseconds.
    pub latency_total_ms: u64,
    /// The least time that it took, in milliseconds.
    pub latency_min_ms: u64,
    /// The most time that it took, in milliseconds.
    pub latency_max_ms: u64,
    /// The mean, in milliseconds.
    pub latency_avg_ms: u64,
}
