//! Measurements that `/diagnostics` and `/metrics` share.

use std::time::Duration;

use crate::control::Stored;
use crate::events;
use crate::http::state::Api;
use crate::operation_metrics::{Operation, OperationStats};
use crate::process::Memory;
use crate::rate_limit::RateLimiter;
use crate::stats::{RateLimit, RequestMemory, Scheduler};

/// Measurements of the server at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Time since the start.
    pub uptime: Duration,
    /// Asynchronous tasks that are alive.
    pub tasks: u64,
    /// Memory held by the allocator.
    pub memory: Memory,
    /// Measurements from the store; `None` while it does not answer.
    pub stored: Option<Stored>,
    /// Queue of spawns that found no room.
    pub scheduler: Scheduler,
    /// Counts of events and their subscribers.
    pub events: events::Counts,
    /// Counts of the rate limiter.
    pub rate_limit: RateLimit,
    /// Memory budget that requests share.
    pub request_memory: RequestMemory,
    /// Outcomes and durations of operations, by operation and provider.
    pub operations: Vec<(Operation, String, OperationStats)>,
}

impl Snapshot {
    /// Collects the measurements now.
    pub async fn take(api: &Api) -> Self {
        let stored = api.control.stored_stats().await;
        Self {
            scheduler: api.control.scheduler_stats(stored.as_ref()),
            stored,
            uptime: api.settings.started.elapsed(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64,
            memory: api.settings.process.memory(),
            events: api.control.events_stats(),
            rate_limit: api.settings.rate_limiter.as_deref().map(RateLimiter::stats).unwrap_or_default(),
            request_memory: api.settings.memory.stats(),
            operations: api.control.operations().tallies(),
        }
    }
}
