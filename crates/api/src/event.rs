//! What happened.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened: the `data:` of a server-sent event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Rises from event to event, across restarts too.
    pub id: u64,
    /// What, such as `sandbox.running`; `events.gap` where events are missing.
    #[serde(rename = "type")]
    pub kind: String,
    /// To which sandbox; null if to none.
    #[serde(default)]
    pub sandbox_id: Option<String>,
    /// When (RFC 3339, UTC).
    pub timestamp: String,
    /// What else there is to know; depends on the type.
    #[serde(default)]
    pub data: serde_json::Map<String, serde_json::Value>,
}

/// An event of the stream, as the format of server-sent events divides it. For
/// the description of the API only.
#[derive(Debug, ToSchema)]
pub struct ServerSentEvent {
    /// Where to resume: the `id` of the [`Event`].
    pub id: String,
    /// The `type` of the [`Event`].
    pub event: String,
    /// An [`Event`] in JSON.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

impl Event {
    /// The type of an event that tells of missing ones.
    pub const GAP: &'static str = "events.gap";

    /// Every other type.
    pub const TYPES: [&'static str; 29] = [
        "sandbox.created",
        "sandbox.running",
        "sandbox.extended",
        "sandbox.expired",
        "sandbox.destroyed",
        "sandbox.failed",
        "exec.started",
        "exec.completed",
        "exec.failed",
        "exec.timeout",
        "file.written",
        "file.deleted",
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
