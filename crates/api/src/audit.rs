//! Audit history: who called which action, and the outcome.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A row of the audit history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Row number; increases with every row.
    pub id: u64,
    /// Time of the row (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Caller: `admin`, `api_key`, `anonymous`, `owner:<id>` for a key of an owner, or `worker:<id>`.
    pub actor: String,
    /// Action, such as `quotas.update`; `key.refused` for a request with a refused key.
    pub action: String,
    /// HTTP method of the request.
    pub method: String,
    /// Path of the request, without the query.
    pub path: String,
    /// HTTP status of the response.
    pub status: u16,
    /// Duration of the request, in milliseconds.
    pub duration_ms: u64,
    /// Id of the request, as in the server's log.
    pub request_id: String,
    /// Remote address; null over the Unix socket.
    pub remote_addr: Option<String>,
    /// `User-Agent` header of the request; null without one.
    pub user_agent: Option<String>,
    /// Further details, as `name=value` pairs; null without details.
    pub detail: Option<String>,
}
