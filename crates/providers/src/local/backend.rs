//! Differences between the providers that make boxes on this host.

use std::collections::HashSet;
use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::path::PathBuf;

use guest_protocol::CgroupDir;

use super::abilities::{Pauser, SnapshotWriter, Suspender};
use super::agent_socket::{Running, dial};
use super::file_key::{FileKey, files_in};
use super::folder::BoxFolder;
use super::parts::Parts;
use super::plan::BoxPlan;
use super::probe::Probe;
use super::process::Process;
use super::record::Record;
use crate::agent::AgentGuest;
use crate::{Facts, ImageSnapshots, Result, Spec};

/// Properties of the boxes that a backend makes on this host.
#[derive(Debug, Clone, Copy)]
pub struct BoxProperties {
    /// True if a box can hold slots.
    pub(crate) holds_slots: bool,
    /// True if a box gets ids of its own, if there are any.
    pub(crate) has_ids: bool,
    /// True if a box with `disk_mb` is on the disk, and not in memory.
    pub(crate) is_bounded_on_disk: bool,
    /// True if a box begins with a copy of what is in its snapshot.
    pub(crate) copies_snapshot: bool,
}

/// Files of a box that belong to no other.
#[derive(Debug)]
pub struct OwnFiles {
    /// File or folder with all of them.
    pub(crate) path: PathBuf,
    /// True if files that the box has deleted and still holds open take space in addition.
    pub(crate) holds_deleted: bool,
}

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

    /// Returns the properties of boxes; before the first probe, those that boxes may have.
    fn properties(&self, can: Option<Self::Capabilities>) -> BoxProperties;

    /// Returns the way to pause boxes, where they can be paused.
    fn pauser(&self) -> Option<&dyn Pauser> {
        None
    }

    /// Returns the way to write snapshots of boxes, where they have any.
    fn snapshot_writer(&self, can: Option<Self::Capabilities>) -> Option<&dyn SnapshotWriter> {
        let _ = can;
        None
    }

    /// Returns the way to write paused boxes to disk, if there is one.
    fn suspender(&self) -> Option<&dyn Suspender> {
        None
    }

    /// Returns the release of the kernel of boxes; `None` if it is that of this host.
    fn kernel(&self) -> Option<String> {
        None
    }

    /// Returns the snapshots of images that boxes are made from.
    fn image_snapshots(&self) -> Option<ImageSnapshots> {
        None
    }

    /// Returns the files of a box that take the disk, and belong to no other; `None` if they are in its memory.
    fn own_files(&self, folder: &BoxFolder, can: Option<Self::Capabilities>) -> Option<OwnFiles> {
        let _ = can;
        Some(OwnFiles { path: folder.path().to_owned(), holds_deleted: true })
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
