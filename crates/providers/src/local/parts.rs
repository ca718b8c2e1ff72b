//! Parts that every backend makes its boxes from.

use images::Images;
use tokio_util::task::TaskTracker;

use super::agent_file::AgentFile;
use super::fault::not_opened;
use super::folder::Folders;
use super::host_rootfs::HostRootfs;
use super::ids::IdPool;
use super::removals::Removals;
use crate::Result;

/// Folders, ids, images and programs of one provider.
#[derive(Debug)]
pub struct Parts {
    pub(crate) folders: Folders,
    pub(crate) agent: AgentFile,
    pub(crate) host_rootfs: HostRootfs,
    /// Source of the boxes' own ids; `None` if they run as the server's user.
    pub(crate) ids: Option<IdPool>,
    /// Source of images other than `host`.
    pub(crate) images: Option<Images>,
    pub(crate) removals: Removals,
    /// Work that goes on if its caller goes away.
    pub(crate) tasks: TaskTracker,
}

impl Parts {
    pub(crate) fn new(folders: Folders, ids: Option<IdPool>, images: Option<Images>) -> Result<Parts> {
        let host_rootfs = HostRootfs::make(&folders.base).map_err(not_opened)?;
        let agent = AgentFile::sealed()?;
        let removals = Removals::default();
        let tasks = TaskTracker::new();
        Ok(Parts { folders, agent, host_rootfs, ids, images, removals, tasks })
    }
}
