//! Plan of a box, and the box made by it.

use std::time::Duration;

use domain::{Resources, SandboxId};
use guest_protocol::Slot;

use super::folder::BoxFolder;
use super::image::Image;
use super::process::Process;
use super::snapshot_folder::SnapshotFolder;
use crate::Phase;
use crate::agent::AgentGuest;

/// Plan of a box or slot to make, with the backend's capabilities `C` on this host.
#[derive(Debug)]
pub struct BoxPlan<'a, C> {
    pub(crate) id: &'a SandboxId,
    pub(crate) folder: BoxFolder,
    pub(crate) kind: Kind,
    pub(crate) resources: &'a Resources,
    pub(crate) lifetime: Duration,
    pub(crate) can: C,
    /// Image of the root; `None` for `host`.
    pub(crate) image: Option<&'a Image>,
    /// Snapshot that the box is made of.
    pub(crate) snapshot: Option<SnapshotFolder>,
    /// True if what the snapshot has counts to the disk limit; see [`crate::Spec::is_copy`].
    pub(crate) is_copy: bool,
    /// Certificate of an authority that the box trusts; see [`crate::Spec::trust`].
    pub(crate) trust: Option<&'a str>,
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
