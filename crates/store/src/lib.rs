//! Durable state: sandboxes, leases, quotas, templates, secrets, snapshots, keys, pool places and the audit history.
//!
//! Each method is one transaction, conditional on the rows it read, so that no rule can be
//! raced. Every engine passes the same test suite, `suite`.

mod admission;
mod audit;
pub mod clock;
mod error;
mod keys;
mod pool;
mod quotas;
mod sandboxes;
mod secrets;
mod snapshots;
mod sqlite;
#[cfg(test)]
mod suite;
mod templates;
mod transactions;
pub mod workers;

pub use admission::{Admitted, IdempotencyKey, KEY_LIFETIME, NewSandbox};
pub use audit::{AuditEntry, AuditFilter, NewAuditEntry};
pub use error::Error;
pub use keys::{KeyInserted, OwnerKey};
pub use pool::{PoolBounds, PoolCounts, PoolHost, PoolPlace};
pub use quotas::{OwnerQuota, QuotaSummary};
pub use sandboxes::{Applied, Change, Counts, Cursor, Kept, KeptRows, ListFilter, Page, Sandbox};
pub use secrets::{NewSecret, StoredSecret};
pub use snapshots::{NewSnapshot, Snapshot, SnapshotBounds, SnapshotCursor, SnapshotFilter, SnapshotState};
pub use sqlite::Sqlite;
pub use templates::{Inserted, Template, TemplateBounds, TemplateCursor, TemplateFilter};
pub use transactions::{Maintenance, Store};
