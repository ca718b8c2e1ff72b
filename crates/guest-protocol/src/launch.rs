//! What the `native` provider tells the launcher, the mode of the agent binary
//! that makes a box, and what the launcher answers.
//!
//! The launcher is started with `launch` as its only argument and three
//! descriptors: 0 is a socket that carries one line of JSON ([`Launch`]) and
//! takes back lines of JSON ([`LaunchReport`]); 1 is the listening socket of the
//! agent; 2 is the sealed file of the agent itself. End of file on 0 means that
//! the agent has been executed, or, if nothing was reported, that the launcher
//! was ended from outside.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The longest line of either side, in bytes.
pub const LAUNCH_LINE_BYTES_MAX: usize = 256 * 1024;

/// How to make one box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The host name in the box.
    pub hostname: String,
    /// The box's directory on the host. The launcher writes `pid` into it
    /// (`<pid> <start time in clock ticks>`) before the box runs anything.
    pub dir: String,
    /// First uid and gid of the 65,536 on the host that become 0… in the box;
    /// `None` without privileges: only the caller's own uid becomes 0.
    pub id_base: Option<u32>,
    /// Mounted in this order; the first is the root.
    pub overlays: Vec<Overlay>,
    /// Where the changes go.
    pub storage: Storage,
    /// Bound of `/dev/shm` in mebibytes.
    pub shm_mb: u32,
    /// Control groups of the host that the box joins.
    pub cgroups: Vec<CgroupDir>,
    /// A file whose `oom_kill` line counts kills by the memory limit; opened on
    /// the host and handed to the agent.
    pub oom_events: Option<String>,
    /// Limits that the box keeps on itself where no control group does.
    pub soft: SoftLimits,
    /// Milliseconds until the box ends by itself if nobody extends that.
    pub deadline_ms: u64,
    /// The box will hold slots, so its agent leaves their processes alone and
    /// runs no command.
    #[serde(default)]
    pub holds_slots: bool,
    /// What is made is not a box but a slot in one.
    #[serde(default)]
    pub slot: Option<Slot>,
    /// What commands get that do not say otherwise.
    #[serde(default)]
    pub defaults: Defaults,
    /// See [`Boot::memory_mb`].
    #[serde(default)]
    pub memory_mb: u32,
    /// What runs beside the agent; see [`Boot::entrypoint`].
    #[serde(default)]
    pub entrypoint: Option<Vec<String>>,
    /// The root is that of an image; see [`Boot::furnish`].
    #[serde(default)]
    pub furnish: bool,
}

/// What the image says of its commands. Only what a request leaves out is taken
/// from here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Defaults {
    /// The environment, below that of a request. `PATH`, `HOME`, `LANG` and `TERM`
    /// are added where neither has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The directory that commands start in, absolute; `None`, empty and `/` stand
    /// for `/workspace`. One that is missing is made if the agent furnishes the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`, as [`crate::Exec::user`]; `None` for
    /// the user of the agent. `/workspace` belongs to this user, and files are
    /// written and read as this user. Means nothing where there is a single user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A place for one user in a box that others share.
///
/// It has namespaces of its own but for the user namespace, which is the box's;
/// its processes end with the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The first process of the box, as the host numbers it.
    pub host_pid: u32,
    /// When that process started, in clock ticks since boot.
    pub host_started: u64,
    /// The uid and gid of everything in the slot, as the box numbers them.
    pub uid: u32,
}

/// One overlay mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Where in the box.
    pub target: String,
    /// Host directories, topmost first. They are shown with the box's own ids.
    pub lower: Vec<String>,
    /// The directory of its upper and work directory in the [`Storage`]: one
    /// plain component.
    pub name: String,
}

/// What holds the upper layers of a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// A directory of the host, of the box's own.
    Directory(String),
    /// A file of the host that holds an ext4 file system.
    Image(String),
    /// Memory of the box, at most so many mebibytes.
    TmpfsMb(u32),
}

/// A control group to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupDir {
    /// Its directory on the host.
    pub path: String,
    /// Version 2 (joined at clone) or version 1 (joined by its `tasks` file).
    pub v2: bool,
}

/// Limits without control groups; 0 means that something else holds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SoftLimits {
    /// The agent kills the largest process above this, in mebibytes.
    pub memory_mb: u32,
    /// The box may use so many of the host's processors.
    pub vcpus: u32,
    /// `RLIMIT_NPROC`, counted in the box's own user namespace.
    pub pids: u32,
}

/// A line from the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchReport {
    /// The first process of the box, as the host numbers it.
    Pid(u32),
    /// The devices of the box are the very files of the host: none could be made.
    SharesDevices,
    /// A step failed; nothing of the box is left running.
    Failed {
        /// What was being done, for the log.
        step: String,
        /// The kernel's answer.
        errno: i32,
    },
}

/// The agent's own start, as JSON in its second argument: `agent <boot>`.
///
/// The guest can read it in `/proc/1/cmdline`, so nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Boot {
    /// The descriptor of the listening unix socket to serve.
    pub listener_fd: i32,
    /// The descriptor of an open file whose `oom_kill` line counts kills by the
    /// memory limit (`memory.oom_control` or `memory.events`), if there is one.
    #[serde(default)]
    pub oom_events_fd: Option<i32>,
    /// The descriptor of the listener of the box's system call filter, where calls for
    /// which the kernel takes a lock of the whole host wait for their turn.
    #[serde(default)]
    pub turns_fd: Option<i32>,
    /// Milliseconds until the box ends by itself if nobody extends that.
    pub deadline_ms: u64,
    /// The agent kills the largest process of the box when all of them together
    /// take more than this, in mebibytes; 0 if a control group holds the limit.
    #[serde(default)]
    pub soft_memory_mb: u32,
    /// The memory of the box in mebibytes, whatever holds the limit, of which the
    /// agent's answers take a small share; 0 if it is not known.
    #[serde(default)]
    pub memory_mb: u32,
    /// Commands can run as the user of the agent only.
    #[serde(default)]
    pub single_user: bool,
    /// The box is there for its slots: it runs no command, and children that its
    /// agent did not start are the first processes of slots.
    #[serde(default)]
    pub holds_slots: bool,
    /// What commands get that do not say otherwise.
    #[serde(default)]
    pub defaults: Defaults,
    /// The root is that of an image, which may have next to nothing in it: the agent
    /// makes what is missing of the directories and files that every box has, and
    /// gives `/workspace` to the user of the image.
    #[serde(default)]
    pub furnish: bool,
    /// A program and its arguments that the agent starts once, with [`Boot::defaults`],
    /// and whose output is the console. The box goes on when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// The box's root is a tracer's doing, which must be able to look into the agent.
    #[serde(default)]
    pub traced: Option<crate::Traced>,
}
