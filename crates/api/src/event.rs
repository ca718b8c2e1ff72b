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

impl Event {
    /// The type of an event that tells of missing ones.
    pub const GAP: &'static str = "events.gap";
}
