//! `/diagnostics`, and what it shares with `/metrics`: one look at everything.

use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::{Api, wire};
use crate::control::Stored;
use crate::events;
use crate::figures::{RateLimit, RequestMemory, Scheduler};
use crate::operations::{Operation, Tally};
use crate::process::Memory;
use crate::rate_limit::RateLimiter;

/// Everything that an operator is told, as it was at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Since the start.
    pub uptime: Duration,
    /// Asynchronous tasks that are alive.
    pub tasks: u64,
    /// What the allocator holds.
    pub memory: Memory,
    /// What only the store knows; `None` while it does not answer.
    pub stored: Option<Stored>,
    /// Spawns that found no room.
    pub scheduler: Scheduler,
    /// The events.
    pub events: events::Counts,
    /// The rate limiter.
    pub rate_limit: RateLimit,
    /// The memory that requests share.
    pub request_memory: RequestMemory,
    /// How operations went.
    pub operations: Vec<(Operation, String, Tally)>,
}

impl Snapshot {
    /// Looks now.
    pub async fn take(api: &Api) -> Self {
        let stored = api.control.stored_figures().await;
        Self {
            scheduler: api.control.scheduler_figures(stored.as_ref()),
            stored,
            uptime: api.settings.started.elapsed(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64,
            memory: api.settings.process.memory(),
            events: api.control.events_figures(),
            rate_limit: api.settings.rate_limiter.as_deref().map(RateLimiter::figures).unwrap_or_default(),
            request_memory: api.settings.memory.figures(),
            operations: api.control.operations().tallies(),
        }
    }
}

/// What the service says of itself
///
/// For an operator, without secrets: no key, no owner, no address.
#[utoipa::path(get, path = "/api/v1/diagnostics", tag = "system",
    responses((status = 200, body = api::Diagnostics, description = "As it is now")))]
pub async fn get(State(api): State<Api>) -> Json<api::Diagnostics> {
    let store = api.control.store_health().await;
    let snapshot = Snapshot::take(&api).await;
    Json(wire::figures::diagnostics(&api, &snapshot, store))
}
