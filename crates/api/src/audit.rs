//! Who asked for what.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A row of the audit history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Rises from row to row.
    pub id: u64,
    /// When (RFC 3339, UTC).
    pub created_at: String,
    /// `admin`, `api_key`, `anonymous` or `worker:<id>`.
    pub actor: String,
    /// What was asked for, such as `quotas.update`; `key.refused` for refused keys.
    pub action: String,
    /// The method of the request.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// The status of the answer.
    pub status: u16,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Names the request in the server's log.
    pub request_id: String,
    /// Where it came from; null over the Unix socket.
    pub remote_addr: Option<String>,
    /// What the caller calls itself; null if it does not.
    pub user_agent: Option<String>,
    /// What else there is to know, as `name=value` pairs; null if nothing.
    pub detail: Option<String>,
}
