//! Limits and defaults of decisions, as configured.

use std::time::Duration;

use domain::{Caps, Limits, Resources, SizeRules, SpawnOptions};

use crate::admission::QueuePolicy;
use crate::config::Leases;
use store::{PoolBounds, SnapshotBounds};

/// Time after the last expiry it was given at which an agent ends its box by itself.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(3600);

/// Limits and defaults of decisions.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Limits on lifetimes and deadlines.
    pub limits: Limits,
    /// Caps on the number of sandboxes.
    pub caps: Caps,
    /// Size of a sandbox where a request leaves it out.
    pub resources: Resources,
    /// Rules on the size of one sandbox.
    pub sizes: SizeRules,
    /// Providers whose boxes a service elsewhere runs.
    pub services: Vec<String>,
    /// Queue for spawns that find no room.
    pub queue: QueuePolicy,
    /// Bounds of the shared boxes; `None` when pool mode is off.
    pub pool: Option<PoolBounds>,
    /// Image where a request leaves it out; `None` for the provider's default.
    pub image: Option<String>,
    /// Maximum size of each output stream in a buffered answer, in bytes.
    pub output_bytes_max: usize,
    /// Time for which rows of ended sandboxes are kept.
    pub retention: Duration,
    /// Bounds of the audit history.
    pub audit: AuditBounds,
    /// Maximum number of templates.
    pub templates_max: u64,
    /// Maximum number of keys of owners.
    pub keys_max: u64,
    /// Bounds on snapshots.
    pub snapshots: SnapshotBounds,
    /// Maximum number of owners' quotas.
    pub quotas_max: u64,
    /// Free disk space in bytes below which the box that uses most of it is ended.
    pub reserve_disk_bytes: u64,
    /// Number of free inodes below which the box that uses most of them is ended.
    pub reserve_inodes: u64,
    /// Lease duration, grace period, and the age of a heartbeat that makes a worker stale.
    pub leases: Leases,
    /// True if callers may listen on ports of their sandboxes.
    pub allows_reverse: bool,
    /// Time between two looks at the ports of a box; zero for none.
    pub port_watch_interval: Duration,
    /// True if other workers are configured.
    pub has_workers: bool,
    /// Boxes that are kept ready.
    pub warm_pool: Vec<WarmEntry>,
}

/// Boxes that are kept ready for spawns that ask for the same.
#[derive(Debug, Clone)]
pub struct WarmEntry {
    /// Name in the configuration and in metrics.
    pub name: String,
    /// Template of the boxes; the options count before its values.
    pub template: Option<String>,
    pub options: SpawnOptions,
    /// Number of boxes.
    pub count: usize,
    /// Age at which a box that was not taken is replaced.
    pub max_age: Duration,
    /// True to make boxes of a snapshot of the first one in which the template's commands have run.
    pub snapshot: bool,
}

/// Bounds of the audit history.
#[derive(Debug, Clone, Copy)]
pub struct AuditBounds {
    pub retention: Duration,
    /// Maximum number of rows.
    pub entries_max: u64,
}
