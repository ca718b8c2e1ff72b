//! Differences between the providers that make boxes on this host.

use std::collections::HashSet;
use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::path::PathBuf;

use guest_protocol::CgroupDir;

use super::agent_socket::{Running, dial};
use super::cgroup::freezer::Freezer;
use super::file_key::{FileKey, files_in};
use super::folder::BoxFolder;
use super::parts::Parts;
use super::plan::BoxPlan;
use super::probe::Probe;
use super::process::Process;
use super::record::Record;
use super::snapshot_folder::SnapshotFolder;
use crate::agent::AgentGuest;
use crate::{Error, Facts, ImageSnapshots, Result, Spec};

/// A way to make boxes on this host.
///
/// [`super::Local`] turns it into a provider. It keeps what all of them have in common: the lock
/// on a box, images, records and ids, the order of the steps of a start and a removal, and the
/// search for boxes of an earlier server. A backend says only what it does in these steps:
///
/// 1. [`Backend::make_folder`], then the record of what the box will own is written to it,
/// 2. [`Backend::prepare`] for its files,
/// 3. [`Backend::launch`] to start it and connect to its agent.
///
/// At the removal [`Backend::kill`] ends its processes and [`Backend::release`] removes what lies
/// outside of the folder; the folder goes to the trash, and the ids are free when it is deleted.
/// A step may fail, or be the last before a crash, so the removal takes every box as far as it
/// got.
pub trait Backend: fmt::Debug + Send + Sync + Sized + 'static {
    /// Name of the provider.
    const NAME: &'static str;
    /// True if a box has a copy of its image, so that the image may be removed while it runs.
    const COPIES_IMAGE: bool;
    /// Image of a spawn that names none; also whether there is an image [`super::image::HOST`].
    const DEFAULT_IMAGE: &'static str;

    /// True if snapshots have the memory of their box, which the backend has stand still by itself.
    const KEEPS_MEMORY: bool = false;

    /// Socket of a box's agent that is made with its folder; `()` if it is reached otherwise.
    type Socket: Send;
    /// Features that this host allows boxes.
    type Capabilities: fmt::Debug + Copy + Send + Sync;
    /// Order to start a box whose files are in place.
    type Order: Send;

    /// Returns the parts that boxes are made from.
    fn parts(&self) -> &Parts;

    /// Finds the most capable kind of boxes that this host allows, with
    /// [`super::builder::try_box`].
    fn probe(&self) -> impl Future<Output = Probe<Self::Capabilities>> + Send;

    /// Tests a probe's box, whose agent has answered.
    fn test(&self, guest: &AgentGuest) -> impl Future<Output = Result<()>> + Send {
        let _ = guest;
        ready(Ok(()))
    }

    /// Returns the properties of the provider by the last probe.
    fn facts(&self, probe: &Probe<Self::Capabilities>) -> Facts;

    /// Checks that `spec` asks only for what boxes enforce here. Its image is checked already.
    fn check(&self, spec: &Spec, can: Option<Self::Capabilities>) -> Result<()> {
        let _ = (spec, can);
        Ok(())
    }

    /// Returns whether a box may hold slots. Before the first probe, returns whether there may be
    /// one that does.
    fn has_slots(&self, can: Option<Self::Capabilities>) -> bool {
        let _ = can;
        false
    }

    /// Returns whether boxes can be paused.
    fn can_pause(&self) -> bool {
        false
    }

    /// Stops everything in a box that is alive, unless it is paused already: freezes its control group
    /// unless the backend has another way. Returns false if something does not stop in time; then all of
    /// it goes on.
    fn pause(&self, folder: &BoxFolder, record: &Record) -> impl Future<Output = Result<bool>> + Send {
        let _ = folder;
        let freezer = freezer(record);
        async { freezer?.freeze().await.map_err(|error| not_changed("pause a box", error)) }
    }

    /// Lets a box that is alive go on, if it is paused.
    fn resume(&self, folder: &BoxFolder, record: &Record) -> impl Future<Output = Result<()>> + Send {
        let _ = folder;
        let thawed =
            freezer(record).and_then(|freezer| freezer.thaw().map_err(|error| not_changed("resume a box", error)));
        ready(thawed)
    }

    /// Returns whether a box is paused, or is being paused.
    fn is_paused(&self, folder: &BoxFolder, record: &Record) -> bool {
        let _ = folder;
        // The group of a box that is being removed is gone.
        Freezer::of(&record.cgroups).is_some_and(|freezer| freezer.is_asked().unwrap_or(false))
    }

    /// Returns whether the memory of boxes can be handed back to the system.
    fn can_reclaim(&self) -> bool {
        false
    }

    /// Returns whether the changes of boxes can be kept as snapshots.
    fn has_snapshots(&self, can: Option<Self::Capabilities>) -> bool {
        let _ = can;
        false
    }

    /// Writes the state of a box to the folder of a new snapshot, and returns the bytes that it takes there.
    /// No process of the box runs meanwhile if it has a control group that can be frozen; else, and with
    /// [`Backend::KEEPS_MEMORY`], the backend sees to that itself.
    fn keep(
        &self,
        folder: &BoxFolder,
        record: &Record,
        new: &SnapshotFolder,
    ) -> impl Future<Output = Result<u64>> + Send {
        let _ = (folder, record, new);
        ready(Err(Error::NotSupported(format!("the provider {} has no snapshots", Self::NAME))))
    }

    /// Returns whether a paused box can be written to disk, so that it takes no memory.
    fn can_suspend(&self) -> bool {
        false
    }

    /// Writes a paused box to its folder, and ends its processes.
    fn suspend(&self, folder: &BoxFolder, process: Option<&Process>) -> impl Future<Output = Result<()>> + Send {
        let _ = (folder, process);
        ready(Err(Error::NotSupported(format!("the provider {} writes no box to disk", Self::NAME))))
    }

    /// Returns whether a box was written to its folder, and has no process.
    fn is_suspended(&self, folder: &BoxFolder) -> bool {
        let _ = folder;
        false
    }

    /// Makes a box go on that was written to its folder.
    fn wake(&self, folder: &BoxFolder, process: Option<&Process>) -> impl Future<Output = Result<Running>> + Send {
        let _ = (folder, process);
        ready(Err(Error::Gone))
    }

    /// Returns the release of the kernel of boxes; `None` if it is that of this host.
    fn kernel(&self) -> Option<String> {
        None
    }

    /// Returns the snapshots of images that boxes are made from.
    fn image_snapshots(&self) -> Option<ImageSnapshots> {
        None
    }

    /// Returns whether a box gets ids of its own, if there are any.
    fn has_ids(&self, can: Self::Capabilities) -> bool {
        let _ = can;
        true
    }

    /// Returns whether a box begins with a copy of what is in its snapshot.
    fn copies_snapshot(&self, can: Option<Self::Capabilities>) -> bool {
        let _ = can;
        Self::COPIES_IMAGE
    }

    /// Returns whether a box with `disk_mb` lies on the disk, and not in memory.
    fn holds_bounded(&self, can: Option<Self::Capabilities>) -> bool {
        let _ = can;
        true
    }

    /// Returns whether the files of the box lie in its folder, and not in its memory.
    fn sees_disk(&self, folder: &BoxFolder) -> bool {
        let _ = folder;
        true
    }

    /// Returns the file or folder with all that the box takes of the disk by itself.
    fn own_files(&self, folder: &BoxFolder) -> PathBuf {
        folder.path().to_owned()
    }

    /// Returns the files of the box that other boxes, snapshots or the host may have too.
    fn shared_files(&self, folder: &BoxFolder) -> io::Result<Vec<PathBuf>> {
        folder.layers()
    }

    /// Returns the files that the host keeps without a box, so that none is charged for them.
    fn kept_files(&self) -> io::Result<HashSet<FileKey>> {
        let snapshots = self.parts().folders.all_snapshots()?;
        files_in(snapshots.iter().map(|(_, snapshot)| snapshot.path().to_owned()))
    }

    /// Returns whether files that the box has deleted and still holds open take space beside its
    /// folder's files.
    fn holds_deleted(&self, folder: &BoxFolder, can: Option<Self::Capabilities>) -> bool {
        let _ = (folder, can);
        true
    }

    /// Returns the control groups that the box will have.
    fn cgroups(&self, plan: &BoxPlan<'_, Self::Capabilities>) -> Vec<CgroupDir> {
        let _ = plan;
        Vec::new()
    }

    /// Makes the folder of a box, which must not exist yet, with the socket of its agent.
    fn make_folder(&self, folder: &BoxFolder) -> io::Result<Self::Socket>;

    /// Makes files and control groups of a box whose record is written. `id_base` is the first of
    /// its ids, if it has any.
    fn prepare(
        &self,
        plan: &BoxPlan<'_, Self::Capabilities>,
        id_base: Option<u32>,
    ) -> impl Future<Output = Result<Self::Order>> + Send;

    /// Starts the box, and connects to its agent. The first process is recorded in the folder
    /// before it runs.
    fn launch(
        &self,
        folder: &BoxFolder,
        socket: Self::Socket,
        order: Self::Order,
    ) -> impl Future<Output = Result<Running>> + Send;

    /// Opens another connection to the agent of a running box.
    fn dial(&self, folder: &BoxFolder) -> impl Future<Output = Result<AgentGuest>> + Send {
        dial(folder)
    }

    /// Kills the processes of a box. `process` is the first one, if it may still run; the caller
    /// waits for its end.
    fn kill(
        &self,
        folder: &BoxFolder,
        record: &Record,
        process: Option<&Process>,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// Removes what a box whose processes have ended has outside of its folder.
    fn release(&self, folder: &BoxFolder, record: &Record) -> impl Future<Output = io::Result<()>> + Send;
}

/// Returns the freezer of a box.
fn freezer(record: &Record) -> Result<Freezer> {
    Freezer::of(&record.cgroups).ok_or_else(|| {
        Error::NotSupported(
            "the box has no control group that can be frozen, since an earlier build of the server made it; make \
             it anew"
                .to_owned(),
        )
    })
}

/// Converts an error of a freezer; a group that is gone went with its box.
fn not_changed(action: &'static str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound { Error::Gone } else { Error::failed(action, error) }
}
