//! Events of sandboxes and of the service.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An event: the `data:` of a server-sent event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Event number; increases with every event, also across restarts.
    pub id: u64,
    /// Type, such as `sandbox.running`; `events.gap` where events are missing.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sandbox that the event is about; null if none.
    #[serde(default)]
    pub sandbox_id: Option<String>,
    /// Time of the event (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub timestamp: String,
    /// Further details; their names depend on the type.
    #[serde(default)]
    pub data: serde_json::Map<String, serde_json::Value>,
}

/// The fields of one event in the `text/event-stream` format. For the API description only.
#[derive(Debug, ToSchema)]
pub struct ServerSentEvent {
    /// Position to resume from: the `id` of the [`Event`].
    pub id: String,
    /// Type: the `type` of the [`Event`].
    pub event: String,
    /// The [`Event`] as JSON.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

/// The fields of one event of a sandbox's statistics in the `text/event-stream` format. For the API description only.
#[derive(Debug, ToSchema)]
pub struct StatsEvent {
    /// Always `stats`.
    pub event: String,
    /// The [`crate::SandboxStats`] as JSON.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

impl Event {
    /// Type of the event that stands for events which are no longer kept.
    pub const GAP: &'static str = "events.gap";

    /// All types but [`Event::GAP`].
    pub const TYPES: [&'static str; 41] = [
        "sandbox.created",
        "sandbox.running",
        "sandbox.extended",
        "sandbox.paused",
        "sandbox.resumed",
        "sandbox.reclaimed",
        "sandbox.suspended",
        "sandbox.expired",
        "sandbox.destroyed",
        "sandbox.failed",
        "exec.started",
        "exec.completed",
        "exec.failed",
        "exec.timeout",
        "file.written",
        "file.deleted",
        "egress.denied",
        "egress.changed",
        "snapshot.created",
        "snapshot.deleted",
        "secret.saved",
        "secret.deleted",
        "ports.opened",
        "ports.closed",
        "spawn.queued",
        "spawn.dequeued",
        "spawn.queue_timeout",
        "quota.saved",
        "quota.deleted",
        "template.saved",
        "template.deleted",
        "provider.healthy",
        "provider.unhealthy",
        "image.pulling",
        "image.pulled",
        "image.failed",
        "image.removed",
        "worker.online",
        "worker.stale",
        "reconcile.action",
        "resource.limit",
    ];
}
