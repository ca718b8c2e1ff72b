//! Limits: which cap, maximum or bound refuses a request.

use std::fmt;
use std::time::Duration;

use domain::{AboveCeiling, DurationError, format_duration};

/// Limit that refuses a request. Its text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// A cap on active sandboxes is reached.
    Cap(Cap),
    /// A cap is reached, and so many spawns wait already that the queue is full.
    QueueFull { cap: Cap, waiting: usize },
    /// A cap is reached, and so many spawns of the owner wait already that its share of the queue
    /// is full.
    QueueShareFull { cap: Cap, waiting: usize },
    /// A cap was reached for as long as a spawn may wait.
    QueueTimeout { cap: Cap, waited: Duration },
    /// A size is above its ceiling. Waiting does not help.
    AboveCeiling(AboveCeiling),
    /// A lifetime or deadline is above its maximum. Waiting does not help.
    AboveMaximum { field: &'static str, max: Duration },
    /// A duration is longer than any can be.
    DurationTooLong { field: &'static str },
    /// A disk bound is above what the host's disk has.
    DiskBound { disk_mb: u32, provider: String, max_mb: u64 },
    /// The maximum number of objects of one kind is reached.
    TooMany { objects: Counted, max: u64 },
    /// The snapshots would take more than their maximum.
    SnapshotsTooLarge { max_mb: u64 },
    /// The sandbox holds more of removed snapshots than its disk bound.
    RemovedSnapshots { held_mb: u64, max_mb: u64 },
    /// The provider refuses, in its own words.
    Refused(String),
}

/// Cap on active sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    /// The cap on all sandboxes.
    Sandboxes { max: u64 },
    /// The cap on sandboxes of one owner.
    SandboxesOfOwner { max: u64 },
    /// The slots in all boxes that users share.
    Pool { boxes: u32, slots: u32 },
    /// The owner's share of the boxes that users share.
    PoolShare,
}

/// Kind of objects whose number has a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    Templates,
    /// Templates of one owner.
    TemplatesOfOwner,
    Keys,
    Quotas,
    Secrets,
    Workers,
    Snapshots,
    /// Snapshots of one owner.
    SnapshotsOfOwner,
    /// Builds of templates that run at once.
    Builds,
    /// Runs that wait for one context.
    WaitingRuns,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Cap(cap) => write!(f, "{cap}; destroy one or try later"),
            Limit::QueueFull { cap, waiting } => {
                write!(f, "{cap}, and {waiting} spawns are already waiting (`defaults.max_spawn_queue`); try later")
            }
            Limit::QueueShareFull { cap, waiting } => write!(
                f,
                "{cap}, and this owner already has {waiting} spawns waiting, its full share of the queue \
                 (`defaults.max_spawn_queue_per_owner`); wait for them, or try later"
            ),
            Limit::QueueTimeout { cap, waited } => write!(
                f,
                "{cap}, and no place became free within {} (`defaults.spawn_queue_timeout`); try again",
                format_duration(*waited)
            ),
            Limit::AboveCeiling(AboveCeiling { field: "disk_mb", max }) => {
                write!(f, "`disk_mb` is above the maximum of {max}, or is 0, which means no limit; ask for 1 to {max}")
            }
            Limit::AboveCeiling(AboveCeiling { field, max }) => {
                write!(f, "`{field}` is above the maximum of {max}; ask for {max} or less")
            }
            Limit::AboveMaximum { field, max } => {
                let max = format_duration(*max);
                write!(f, "`{field}` is above the maximum of {max}; ask for {max} or less")
            }
            Limit::DurationTooLong { field } => write!(f, "`{field}` {}", DurationError::TooLong),
            Limit::DiskBound { disk_mb, provider, max_mb } => write!(
                f,
                "`disk_mb` is {disk_mb}, but the disk with the boxes of `{provider}` has only {max_mb} MiB above \
                 `limits.reserve_disk_mb`; ask for at most {max_mb}"
            ),
            Limit::TooMany { objects, max } => objects.write_too_many(*max, f),
            Limit::SnapshotsTooLarge { max_mb } => write!(
                f,
                "snapshots, including removed ones that sandboxes still use, would exceed the {max_mb} MiB of \
                 `snapshots.max_mb`; delete snapshots, or sandboxes made from other snapshots, that you no longer need"
            ),
            Limit::RemovedSnapshots { held_mb, max_mb } => write!(
                f,
                "removed snapshots still use {held_mb} MiB in the sandbox, more than its `disk_mb` of {max_mb}; copy \
                 the files that you need into a new sandbox"
            ),
            Limit::Refused(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cap::Sandboxes { max } => write!(f, "the server has reached its maximum of {max} active sandboxes"),
            Cap::SandboxesOfOwner { max } => write!(f, "this owner has reached the maximum of {max} active sandboxes"),
            Cap::Pool { boxes, slots } => write!(
                f,
                "the pool is full: {boxes} boxes for {slots} users each (`pool.max_vms`, \
                 `pool.max_users_per_vm`), and none of this size has a free place"
            ),
            Cap::PoolShare => f.write_str(
                "this owner has reached its share of the pool, and its boxes have no place of this size; use a size \
                 that you already have",
            ),
        }
    }
}

impl Counted {
    fn write_too_many(self, max: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Counted::Templates => write!(f, "the limit of {max} templates (`limits.max_templates`) is reached")?,
            Counted::TemplatesOfOwner => {
                write!(f, "the limit of {max} templates of one owner, a tenth of `limits.max_templates`, is reached")?
            }
            Counted::Keys => {
                return write!(
                    f,
                    "the limit of {max} keys (`auth.max_keys`) is reached; revoke one that is no longer needed"
                );
            }
            Counted::Quotas => write!(f, "the limit of {max} quotas (`limits.max_quotas`) is reached")?,
            Counted::Secrets => write!(f, "the limit of {max} secrets is reached")?,
            Counted::Snapshots => write!(f, "the limit of {max} snapshots (`snapshots.max`) is reached")?,
            Counted::SnapshotsOfOwner => {
                write!(f, "the limit of {max} snapshots of the sandbox's owner (`snapshots.max_per_owner`) is reached")?
            }
            Counted::Builds => {
                return write!(f, "{max} builds of templates run already; wait for one to end");
            }
            Counted::WaitingRuns => {
                return write!(f, "{max} runs already wait for this context; use several contexts, or try later");
            }
            Counted::Workers => {
                return write!(
                    f,
                    "the limit of {max} workers is reached; remove one with DELETE /api/v1/admin/workers/{{id}}"
                );
            }
        }
        f.write_str("; delete one that you no longer need")
    }
}
