//! Operations of the service, one file each: methods of [`Control`], which `service` declares. All
//! decisions are made here; HTTP handlers only translate requests and answers.

mod admission;
mod announced;
mod audit;
mod auto_pause;
mod collected;
mod conflict;
mod destroy;
mod directories;
mod egress;
mod error;
mod exec;
mod extend;
mod fork;
mod guests;
mod images;
mod in_progress;
mod in_use;
mod inventory;
mod late_deadlines;
mod leased;
mod listen;
mod looks;
mod pause;
mod policy;
mod pool;
mod port_events;
mod ports;
mod prepare;
mod processes;
mod promises;
mod query;
mod quotas;
mod resource;
mod room;
mod runtime;
mod sandbox_stats;
mod search;
mod secrets;
mod service;
mod set_deadlines;
mod snapshot_images;
mod snapshot_spawns;
mod snapshots;
mod snapshots_in_hand;
mod spawn;
mod stats;
mod templates;
mod wait;
mod waiters;
mod warm_boxes;
mod warm_pool;
mod warm_renewals;
mod warm_snapshots;
mod workers;

pub use admission::Decision;
pub use announced::{Listener, Refuser, Taken};
pub(crate) use auto_pause::Idle;
pub use collected::Collected;
#[cfg(test)]
pub use collected::collected_of;
#[cfg(test)]
pub use conflict::Conflict;
pub use egress::EgressState;
pub use error::{Error, Result};
pub use exec::{ExecCommand, ExecOutcome, ExecRequest, Handle, InteractiveExec, InteractiveInput, Running};
pub use fork::ForkRequest;
pub use images::Pull;
pub(crate) use inventory::Kept;
pub use leased::Held;
pub use pause::Pause;
pub use policy::{AuditBounds, ORPHAN_GRACE, Policy, WarmEntry};
pub use pool::{PoolStatus, SharedBoxes};
pub use processes::{AttachedProcess, ProcessRef, StartProcess};
pub use query::ProviderDetail;
pub use quotas::Usage;
pub use resource::Resource;
pub use runtime::LOCAL_WORKER;
pub use sandbox_stats::{SandboxStats, StatTotals, totals};
pub use service::{Control, ControlParts};
pub use snapshots::NewSnapshotRequest;
pub use spawn::{SpawnRequest, Spawned};
pub use stats::Stored;
pub use wait::{WAIT_MAX, WaitFor};
pub use warm_pool::WarmFigures;
pub use warm_snapshots::WarmSnapshot;
pub use workers::{LEASE_TTL_MAX, Seen, hostname};

pub use store::workers::{Heartbeat, LeaseCounts};
pub use store::{
    AuditEntry, AuditFilter, Counts, Cursor, IdempotencyKey, ListFilter, NewAuditEntry, OwnerQuota, QuotaSummary,
    Sandbox, Snapshot, SnapshotCursor, SnapshotFilter, StoredSecret, Template,
};
