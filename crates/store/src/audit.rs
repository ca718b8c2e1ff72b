//! The audit history: requests, their callers and their outcomes.

use async_trait::async_trait;
use domain::Timestamp;

use super::error::Result;

/// A row to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuditEntry {
    pub created_at: Timestamp,
    /// Caller: `admin`, `api_key`, `anonymous`, `owner:<id>` for a key of an owner, or `worker:<id>`.
    pub actor: String,
    /// Action, such as `quota.save`.
    pub action: String,
    pub method: String,
    /// Path of the request, without the query.
    pub path: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Duration of the request, in milliseconds.
    pub duration_ms: u64,
    /// Id of the request in the log.
    pub request_id: String,
    /// Address of the client, if the request came over a network.
    pub remote_addr: Option<String>,
    /// `User-Agent` of the request.
    pub user_agent: Option<String>,
    /// Further details of the action.
    pub detail: Option<String>,
}

/// A row, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Id, which rises from row to row and is never used again.
    pub id: u64,
    pub entry: NewAuditEntry,
}

/// Filter of a list; absent fields do not restrict it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub actor: Option<String>,
    pub action: Option<String>,
    pub method: Option<String>,
    pub status: Option<u16>,
    /// Literal text that the path must contain.
    pub path: Option<String>,
    /// Earliest time, inclusive.
    pub since: Option<Timestamp>,
    /// Latest time, exclusive.
    pub until: Option<Timestamp>,
}

/// Transactions on the audit history.
#[async_trait]
pub trait AuditStore {
    /// Writes a row and returns its id.
    async fn insert_audit(&self, entry: &NewAuditEntry) -> Result<u64>;

    /// Replaces the detail of a row, if it is still there.
    async fn set_audit_detail(&self, id: u64, detail: &str) -> Result<()>;

    /// Returns rows that match `filter` and whose id is below `before`, newest first, at most
    /// `limit`.
    async fn audit(&self, filter: &AuditFilter, before: Option<u64>, limit: u32) -> Result<Vec<AuditEntry>>;

    /// Deletes rows from before `before`, and the oldest beyond `keep`. Returns their number.
    /// Rows of the admin and all other rows are each sure of half of `keep`, and can use the
    /// unused part of the other half: a flood of one kind displaces none of the other's share.
    async fn prune_audit(&self, before: Timestamp, keep: u64) -> Result<u64>;
}
