//! Abilities that only some backends have, or only on some hosts.

use std::io;

use async_trait::async_trait;

use super::agent_socket::Running;
use super::cgroup::freezer::Freezer;
use super::folder::BoxFolder;
use super::process::Process;
use super::record::Record;
use super::snapshot_folder::SnapshotFolder;
use crate::{Error, Result};

/// Ability to pause boxes.
#[async_trait]
pub trait Pauser: Send + Sync {
    /// Stops everything in a box that is alive, unless it is paused already. Returns false if something does
    /// not stop in time; then all of it continues.
    async fn pause(&self, folder: &BoxFolder, record: &Record) -> Result<bool>;

    /// Resumes a box that is alive, if it is paused.
    async fn resume(&self, folder: &BoxFolder, record: &Record) -> Result<()>;

    /// Returns whether a box is paused, or is being paused.
    fn is_paused(&self, folder: &BoxFolder, record: &Record) -> bool;

    /// Returns whether the memory of boxes can be handed back to the system.
    fn can_reclaim(&self) -> bool {
        false
    }
}

/// Ability to write the state of boxes to snapshots.
#[async_trait]
pub trait SnapshotWriter: Send + Sync {
    /// Writes the state of a box to the folder of a new snapshot, and returns the bytes that it takes there.
    /// No process of the box runs during this if it has a control group that can be frozen; otherwise, and with
    /// [`super::backend::Backend::KEEPS_MEMORY`], the backend stops them itself.
    async fn write(&self, folder: &BoxFolder, record: &Record, new: &SnapshotFolder) -> Result<u64>;
}

/// Ability to write paused boxes to disk, so that they take no memory.
#[async_trait]
pub trait Suspender: Send + Sync {
    /// Writes a paused box to its folder, and ends its processes.
    async fn suspend(&self, folder: &BoxFolder, process: Option<&Process>) -> Result<()>;

    /// Returns whether a box was written to its folder, and has no process.
    fn is_suspended(&self, folder: &BoxFolder) -> bool;

    /// Resumes a box that was written to its folder.
    async fn wake(&self, folder: &BoxFolder, process: Option<&Process>) -> Result<Running>;
}

/// Freezes the control group of a box. Returns false if a process does not stop in time.
pub(crate) async fn freeze(record: &Record) -> Result<bool> {
    freezer(record)?.freeze().await.map_err(|error| not_changed("pause a box", error))
}

/// Thaws the control group of a box.
pub(crate) fn thaw(record: &Record) -> Result<()> {
    freezer(record)?.thaw().map_err(|error| not_changed("resume a box", error))
}

/// Returns whether the control group of a box is frozen, or is being frozen.
pub(crate) fn is_frozen(record: &Record) -> bool {
    // The group of a box that is being removed is gone.
    Freezer::of(&record.cgroups).is_some_and(|freezer| freezer.is_asked().unwrap_or(false))
}

/// Returns the freezer of a box.
fn freezer(record: &Record) -> Result<Freezer> {
    Freezer::of(&record.cgroups).ok_or_else(|| {
        Error::NotSupported(
            "the box has no freezable control group because an earlier build of the server made it; spawn it again"
                .to_owned(),
        )
    })
}

/// Converts an error of a freezer; a group that is gone went with its box.
fn not_changed(action: &'static str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound { Error::Gone } else { Error::failed(action, error) }
}
