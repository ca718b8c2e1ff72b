//! Metrics: the figures of the service, for programs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    EventFigures, LeaseFigures, QuotaSummary, RateLimitFigures, SandboxFigures, SchedulerFigures, WorkerFigures,
};

/// The figures of the service, without secrets: no key, no owner, no address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// Time since the start, such as `1h2m3s`.
    pub uptime: String,
    /// Asynchronous tasks that are alive.
    pub goroutines: u64,
    /// Bytes in use in the allocator.
    pub memory_alloc: u64,
    /// Bytes taken from the system by the allocator.
    pub memory_sys: u64,
    /// Bytes of the heap in memory, in use or free.
    pub memory_heap_alloc: u64,
    /// Always 0: there is no garbage collector.
    pub gc_cycles: u64,
    /// Counts of sandboxes; null while the store does not answer.
    pub sandboxes: Option<SandboxFigures>,
    /// Counts of providers, and the providers themselves.
    pub providers: ProviderFigures,
    /// Workers and their sandboxes; null while the store does not answer.
    pub workers: Option<WorkerFigures>,
    /// Counts of leases; null while the store does not answer.
    pub leases: Option<LeaseFigures>,
    /// Subscribers and counts of events.
    pub events: EventFigures,
    /// Queue of spawns that found no room, and the worker that the next spawn would go to.
    pub scheduler: SchedulerFigures,
    /// Number of owners with a quota of their own; null while the store does not answer.
    pub quotas: Option<QuotaSummary>,
    /// Settings and counters of the rate limiter.
    pub rate_limit: RateLimitFigures,
    /// Outcomes and latencies of every operation on every provider since the start.
    pub operations: Vec<OperationFigures>,
}

/// Counts of providers, and the providers themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderFigures {
    /// Number of configured providers.
    pub total: u64,
    /// Number of providers that can make sandboxes now.
    pub healthy: u64,
    /// The providers, each with its health.
    pub items: Vec<ProviderItem>,
}

/// A provider with its health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderItem {
    /// Name of the provider.
    pub name: String,
    /// True if it can make sandboxes now.
    pub healthy: bool,
    /// True for the provider of requests that name none.
    pub default: bool,
}

/// Outcomes and latencies of one operation on one provider since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationFigures {
    /// Operation: `spawn`, `exec`, `exec_stream`, `destroy`, `extend`, `file_*` or `logs`.
    pub operation: String,
    /// Provider that carried it out.
    pub provider: String,
    /// Calls that succeeded. A command that ends with another code than 0 counts here.
    pub success_total: u64,
    /// Calls that did not succeed.
    pub failure_total: u64,
    /// Calls in total, failed ones included.
    pub latency_count: u64,
    /// Sum of the latencies, in milliseconds.
    pub latency_total_ms: u64,
    /// Lowest latency, in milliseconds.
    pub latency_min_ms: u64,
    /// Highest latency, in milliseconds.
    pub latency_max_ms: u64,
    /// Mean latency, in milliseconds.
    pub latency_avg_ms: u64,
}
