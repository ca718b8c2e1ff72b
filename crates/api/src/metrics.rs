//! Metrics: the figures of the service, for programs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    EventFigures, LeaseFigures, OperationFigures, QuotaSummary, RateLimitFigures, SandboxFigures, SchedulerFigures,
    WorkerFigures,
};

/// Metrics of the service. Contains no keys, owners or addresses.
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
    /// Always 0, because Tidebox has no garbage collector.
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
    /// Queue of waiting spawns, and the worker for the next spawn.
    pub scheduler: SchedulerFigures,
    /// Number of owners with a quota; null while the store does not answer.
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
    /// True if requests that name no provider use it.
    pub default: bool,
}
