//! Operations of the service, one file each: methods of [`Control`], which `service` declares. All
//! decisions are made here; HTTP handlers only translate requests and answers.

mod audit;
mod audit_trail;
mod builds;
mod conflict;
mod contexts;
mod destroy;
mod disk;
mod egress;
mod error;
mod extend;
mod full;
mod guest;
mod images;
mod invalid;
mod keyed_lock;
mod keys;
mod limit;
mod owner_cache;
mod owners;
mod pause;
mod policy;
mod pool;
mod query;
mod quotas;
mod resource;
mod secrets;
mod service;
mod snapshots;
mod spawn;
mod template_name;
mod templates;
mod terms;
mod unavailable;
mod usage;
mod wait;
mod waiters;
mod warm;
mod workers;

pub use builds::archives::Archives;
pub use builds::kept::{Build, BuildState, NewBuild};
pub use builds::log::{LogEntry, LogLevel};
pub use builds::recipe::{Recipe, Step};
pub use builds::scripts::user_if_possible;
pub use conflict::Conflict;
pub use contexts::context::{Context, ContextId, ContextState, NewContext};
pub use contexts::events::{CodeRequest, DIED, Deadline, Outcome, RunEnd, RunEvent};
pub use contexts::streams::Stream;
pub use contexts::{CodeRun, Completions, Target};
pub use egress::EgressState;
pub use error::{Error, Result};
pub use guest::captured_output::Collected;
#[cfg(test)]
pub use guest::captured_output::collected_of;
pub use guest::exec::{ExecCommand, ExecOutcome, ExecRequest, Handle, InteractiveExec, InteractiveInput, Running};
pub use guest::processes::{AttachedProcess, ProcessRef, StartProcess};
pub use guest::reverse_ports::{Listener, Refuser, Taken};
pub use images::Pull;
pub use keys::{KeyFormat, NewKey, NewKeyRequest};
pub use limit::Limit;
pub use pause::Pause;
pub(crate) use pause::auto_pause::Idle;
pub use policy::{AuditBounds, ORPHAN_GRACE, Policy, WarmEntry};
pub use pool::{PoolStatus, SharedBoxes};
pub use query::ProviderDetail;
pub use quotas::Usage;
pub use resource::Resource;
pub use service::{Control, ControlParts};
pub use snapshots::NewSnapshotRequest;
pub use snapshots::fork::ForkRequest;
pub use spawn::admission::Decision;
pub use spawn::{SpawnRequest, Spawned};
pub use template_name::{TemplateRef, tag_of};
pub use templates::Templates;
pub use unavailable::{Diagnosis, Unavailable};
pub use usage::sandbox_stats::{SandboxStats, StatTotals, totals};
pub use usage::stats::Stored;
pub use wait::{WAIT_MAX, WaitFor};
pub use warm::pool::WarmFigures;
pub use warm::snapshots::WarmSnapshot;
pub(crate) use workers::inventory::Kept;
pub use workers::registry::{LEASE_TTL_MAX, Seen, hostname};
pub use workers::worker_role::Held;

pub use store::workers::{Heartbeat, LeaseCounts};
pub use store::{
    AuditEntry, AuditFilter, Counts, Cursor, IdempotencyKey, ListFilter, NewAuditEntry, OwnerKey, OwnerQuota,
    QuotaSummary, Sandbox, Snapshot, SnapshotCursor, SnapshotFilter, StoredSecret, Template, TemplateCursor,
};
