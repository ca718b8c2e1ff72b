//! The audit history: who asked for what, and what came of it.

use async_trait::async_trait;
use domain::Timestamp;

use super::Result;

/// A row that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// When.
    pub created_at: Timestamp,
    /// Who: `admin`, `api_key`, `anonymous` or `worker:<id>`.
    pub actor: String,
    /// What was asked for, such as `quota.save`.
    pub action: String,
    /// The method of the request.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// The status of the answer.
    pub status: u16,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Names the request in the log.
    pub request_id: String,
    /// Where it came from, if over a network.
    pub remote_addr: Option<String>,
    /// What the caller calls itself.
    pub user_agent: Option<String>,
    /// What else there is to know.
    pub detail: Option<String>,
}

/// A row, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Rises from row to row, and never comes again.
    pub id: u64,
    /// What was written.
    pub entry: NewAuditEntry,
}

/// Which rows; what is left out does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of this actor.
    pub actor: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// Of this method.
    pub method: Option<String>,
    /// With this status.
    pub status: Option<u16>,
    /// With this text in the path, character by character.
    pub path: Option<String>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
}

/// The transactions on the audit history.
#[async_trait]
pub trait AuditStore {
    /// Writes a row; its id.
    async fn insert_audit(&self, entry: &NewAuditEntry) -> Result<u64>;

    /// Replaces the detail of a row, if it is still there.
    async fn set_audit_detail(&self, id: u64, detail: &str) -> Result<()>;

    /// Rows that `filter` admits and whose id is below `before`, newest first,
    /// at most `limit`.
    async fn audit(&self, filter: &AuditFilter, before: Option<u64>, limit: u32) -> Result<Vec<AuditEntry>>;

    /// Forgets rows from before `before`, and the oldest beyond `keep`; how many.
    /// Rows of the admin and all others each have half of `keep` for certain, and
    /// of the other half what is left: who floods one takes nothing from the other.
    async fn prune_audit(&self, before: Timestamp, keep: u64) -> Result<u64>;
}
