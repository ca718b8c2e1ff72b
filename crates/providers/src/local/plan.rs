//! Plan of a box, and the box made by it.

use domain::SandboxId;
use guest_protocol::Slot;

use super::folder::BoxFolder;
use super::image::Image;
use super::process::Process;
use super::snapshot_folder::SnapshotFolder;
use crate::agent::AgentGuest;
use crate::{Phase, Spec};

/// Spec of a box or slot to make, and the place, the files and the backend's capabilities `C` on this host.
#[derive(Debug)]
pub struct BoxPlan<'a, C> {
    pub(crate) id: &'a SandboxId,
    pub(crate) spec: &'a Spec,
    pub(crate) folder: BoxFolder,
    pub(crate) kind: Kind,
    pub(crate) can: C,
    /// Image of the root; `None` for `host`.
    pub(crate) image: Option<&'a Image>,
    /// Folder of the snapshot that the box is made from.
    pub(crate) snapshot: Option<SnapshotFolder>,
}

/// Kind of box to make.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A box of one sandbox.
    Box,
    /// A box that holds slots.
    Host,
    /// A slot in a box that holds slots, whose range of ids begins at `id_base`.
    Slot {
        host: SandboxId,
        /// First id of the box.
        id_base: u32,
        /// Process of the box, and uid of the slot in it.
        slot: Slot,
    },
}

/// Running box that has answered.
#[derive(Debug)]
pub struct Made {
    pub(crate) process: Process,
    pub(crate) guest: AgentGuest,
    pub(crate) phases: Vec<Phase>,
    /// True if its devices are the very files of the host.
    pub(crate) shares_devices: bool,
}
