//! Protocol between the `native` provider and the launcher, the mode of the agent binary that makes
//! a box.
//!
//! The launcher is started with `launch` as its only argument and two descriptors: 0 is a socket, 2
//! the sealed file of the agent. It waits for its order without a limit, and ends if the
//! socket is closed before. The order is one byte ([`LAUNCH_LISTENER`]), with which the listening
//! socket of the agent comes as a descriptor, and one line of JSON ([`Launch`]). The launcher sends
//! back lines of JSON ([`LaunchReport`]). End of file on 0 means that the agent was executed, or, if
//! no report came, that the launcher was killed from outside.

use serde::{Deserialize, Serialize};

use super::boot::Defaults;
use super::size_view::SizeView;

/// Longest line of either side, in bytes.
pub const LAUNCH_LINE_BYTES_MAX: usize = 256 * 1024;
/// Byte that carries the listening socket of the agent.
pub const LAUNCH_LISTENER: u8 = b'l';

/// Parameters of one box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Host name in the box.
    pub hostname: String,
    /// Directory of the box on the host. The launcher writes the file `pid` into it (`<pid> <start
    /// time in clock ticks>`) before the box runs anything.
    pub dir: String,
    /// First uid and gid of the 65,536 on the host that become 0… in the box. `None` without
    /// privileges: only the caller's own uid becomes 0.
    pub id_base: Option<u32>,
    /// Overlay mounts, in this order; the first is the root.
    pub overlays: Vec<Overlay>,
    /// Files of the host with file systems of the kind EROFS, topmost first. Each has directories named
    /// as overlays are, which lie above the [`Overlay::lower`] of these. Needs [`Launch::id_base`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshot: Vec<String>,
    /// Mount points of the host below directories that the box shows as they are, which it shows too,
    /// read-only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inner_mounts: Vec<String>,
    /// Storage of the upper layers.
    pub storage: Storage,
    /// Size limit of `/dev/shm` in mebibytes.
    pub shm_mb: u32,
    /// Control groups of the host that the box joins.
    pub cgroups: Vec<CgroupDir>,
    /// File whose `oom_kill` line counts kills by the memory limit; opened on the host and passed
    /// to the agent.
    pub oom_events: Option<String>,
    /// Limits that the box enforces on itself where no control group does.
    pub soft: SoftLimits,
    /// Milliseconds until the box ends by itself unless extended.
    pub deadline_ms: u64,
    /// True if the box will hold slots: its agent leaves their processes alone and runs no command.
    #[serde(default)]
    pub holds_slots: bool,
    /// Parameters of a slot, if a slot in a box is made instead of a box.
    #[serde(default)]
    pub slot: Option<Slot>,
    /// Values of commands whose request names none.
    #[serde(default)]
    pub defaults: Defaults,
    /// Memory of the box in mebibytes; see [`crate::Boot::memory_mb`].
    #[serde(default)]
    pub memory_mb: u32,
    /// Program that runs beside the agent; see [`crate::Boot::entrypoint`].
    #[serde(default)]
    pub entrypoint: Option<Vec<String>>,
    /// Authority that programs of the box trust; see [`crate::Boot::trust`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<String>,
    /// True if the root is that of an image; see [`crate::Boot::furnish`].
    #[serde(default)]
    pub furnish: bool,
    /// True if connections to addresses outside of the box are led to its agent; see
    /// [`crate::Boot::diverted`]. Needs [`Launch::id_base`].
    #[serde(default)]
    pub transparent: bool,
    /// Size that programs of the box see; `None` leaves them the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_view: Option<SizeView>,
}

/// A place for one user in a box that others share.
///
/// It has its own namespaces except for the user namespace, which is the box's. Its processes end
/// with the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Pid of the first process of the box, on the host.
    pub host_pid: u32,
    /// Start time of that process, in clock ticks since boot.
    pub host_started: u64,
    /// Uid and gid of everything in the slot, as the box numbers them.
    pub uid: u32,
}

/// An overlay mount in a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Mount point in the box.
    pub target: String,
    /// Host directories, topmost first. The box sees them with its own ids.
    pub lower: Vec<String>,
    /// Directory of the upper and work directories in the [`Storage`]: one plain component.
    pub name: String,
    /// True if what programs want on the disk (`fsync`) is written there.
    #[serde(default)]
    pub fsync: bool,
}

/// Storage of the upper layers of a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// A directory of the host, for this box alone.
    Directory(String),
    /// A file of the host that holds an ext4 file system.
    Image(String),
    /// A tmpfs in the box's memory of at most this many mebibytes.
    TmpfsMb(u32),
}

/// A control group to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupDir {
    /// Directory of the group on the host.
    pub path: String,
    /// True for version 2 (joined at clone), false for version 1 (joined by its `tasks` file).
    pub v2: bool,
}

/// Limits without control groups; 0 means that the limit is enforced elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SoftLimits {
    /// Mebibytes above which the agent kills the largest process.
    pub memory_mb: u32,
    /// Number of the host's processors that the box may use.
    pub vcpus: u32,
    /// Value of `RLIMIT_NPROC`, counted in the box's own user namespace.
    pub pids: u32,
}

/// A line from the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchReport {
    /// Pid of the first process of the box, on the host.
    Pid(u32),
    /// The devices of the box are the host's own files: none could be made.
    SharesDevices,
    /// A step failed; no process of the box is left.
    Failed {
        /// Step that failed, for the log.
        step: String,
        /// Error number of the kernel.
        errno: i32,
    },
}
