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
    Quotas,
    Secrets,
    Workers,
    Snapshots,
    /// Snapshots of one owner.
    SnapshotsOfOwner,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Cap(cap) => write!(f, "{cap}; destroy one or try later"),
            Limit::QueueFull { cap, waiting } => {
                write!(f, "{cap}, and {waiting} spawns wait already (`defaults.max_spawn_queue`); try later")
            }
            Limit::QueueShareFull { cap, waiting } => write!(
                f,
                "{cap}, and {waiting} spawns of this owner wait already, which is its share of the \
                 queue (`defaults.max_spawn_queue_per_owner`); wait for these, or try later"
            ),
            Limit::QueueTimeout { cap, waited } => write!(
                f,
                "{cap}, and no place came free within {} (`defaults.spawn_queue_timeout`); try \
                 again",
                format_duration(*waited)
            ),
            Limit::AboveCeiling(AboveCeiling { field: "disk_mb", max }) => {
                write!(f, "`disk_mb` is above the maximum of {max}, or 0, which is no bound; ask for 1 to {max}")
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
                "`disk_mb` is {disk_mb}, and the disk with the boxes of `{provider}` has {max_mb} \
                 MiB beyond what `limits.reserve_disk_mb` keeps free; ask for at most {max_mb}"
            ),
            Limit::TooMany { objects, max } => objects.write_too_many(*max, f),
            Limit::SnapshotsTooLarge { max_mb } => write!(
                f,
                "the snapshots, with what sandboxes keep of those that were removed, would take \
                 more than the {max_mb} MiB that `snapshots.max_mb` allows; delete snapshots, or \
                 sandboxes made from others, that are not needed"
            ),
            Limit::RemovedSnapshots { held_mb, max_mb } => write!(
                f,
                "the sandbox holds {held_mb} MiB of snapshots that were removed, more than its \
                 `disk_mb` of {max_mb}; copy the files that are needed into a new sandbox"
            ),
            Limit::Refused(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cap::Sandboxes { max } => write!(f, "the server has its maximum of {max} active sandboxes"),
            Cap::SandboxesOfOwner { max } => write!(f, "this owner has its maximum of {max} active sandboxes"),
            Cap::Pool { boxes, slots } => write!(
                f,
                "the pool is full: {boxes} boxes for {slots} users each (`pool.max_vms`, \
                 `pool.max_users_per_vm`), and none of this size has a place"
            ),
            Cap::PoolShare => f.write_str(
                "none of this owner's boxes of the pool has a place of this size, and those that \
                 hold this owner alone and are not full are as many as are free; use a size that you \
                 have already",
            ),
        }
    }
}

impl Counted {
    fn write_too_many(self, max: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Counted::Templates => write!(f, "there are {max} templates, as many as `limits.max_templates` allows")?,
            Counted::Quotas => write!(f, "there are {max} quotas, as many as `limits.max_quotas` allows")?,
            Counted::Secrets => write!(f, "there are {max} secrets, the most")?,
            Counted::Snapshots => write!(f, "there are {max} snapshots, as many as `snapshots.max` allows")?,
            Counted::SnapshotsOfOwner => {
                write!(f, "the owner of the sandbox has {max} snapshots, as many as `snapshots.max_per_owner` allows")?
            }
            Counted::Workers => {
                return write!(
                    f,
                    "the server knows its maximum of {max} workers; DELETE /api/v1/admin/workers/{{id}} forgets one"
                );
            }
        }
        f.write_str("; delete one that is not needed")
    }
}
