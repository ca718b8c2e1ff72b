//! What the `proot` provider tells the tracer mode of the agent binary, which
//! starts PRoot and looks after it, and its sweep mode, which ends a box.
//!
//! Both are started with `trace` or `sweep` as their only argument and one line of
//! JSON ([`Trace`], [`Sweep`]) on descriptor 0, a socket. The tracer mode has the
//! listening socket of the agent on 1, answers with lines of
//! [`crate::LaunchReport`], and closes 0 when PRoot has been executed. It stays, holds
//! the limits, and ends everything of the box when PRoot or the agent ends. The
//! sweep mode answers with its exit code: 0 when nothing of the box lives any more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How to start one box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The box's directory on the host. `pid` is written into it before anything
    /// of the box runs: two lines of `<pid> <start time in clock ticks>`, the
    /// first for the tracer mode, the second for PRoot. The box's root is `root` in it,
    /// and `life` a FIFO that the agent holds open for as long as it lives.
    pub dir: String,
    /// PRoot's path, and its arguments up to the agent's own.
    pub argv: Vec<String>,
    /// What the agent is told. The descriptors in it are filled in.
    pub boot: crate::Boot,
    /// The whole environment of PRoot and, through it, of the agent.
    pub env: BTreeMap<String, String>,
    /// The uid and gid that everything of the box runs as and nothing else does;
    /// `None` for those of the caller.
    pub id: Option<u32>,
    /// What the box may take.
    pub bounds: Bounds,
}

/// What is watched from outside the box, or held by limits of processes; 0 for
/// no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bounds {
    /// Above this the largest process is killed, in mebibytes.
    pub memory_mb: u32,
    /// The box may use so many of the host's processors.
    pub vcpus: u32,
    /// Processes and threads. The kernel holds it for a box with an id of its own;
    /// else, above this, all commands are ended.
    pub pids: u32,
    /// What the files of the box take above what they took at its start, in
    /// mebibytes. Above this all commands are ended. No file can be larger.
    pub disk_mb: u32,
}

/// Which box to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// As [`Trace::id`].
    pub id: Option<u32>,
    /// Pids and start times as `pid` in the box's directory has them. Those that
    /// mean another process by now are left alone.
    pub roots: Vec<(u32, u64)>,
}

/// What an agent is told whose root file system is a tracer's doing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traced {
    /// The descriptor of a pipe that carries lines of [`Note`].
    pub notes_fd: i32,
    /// The path of the FIFO that the agent holds open for as long as it lives, and
    /// writes lines of [`EndTree`] into.
    pub life: String,
}

/// What the agent asks of the tracer mode, as a line through the FIFO: below a tracer
/// a signal to stop stops nothing, so only from outside can a tree be held still.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndTree {
    /// This process and all that descends from it are to be ended.
    pub root: i32,
}

/// What the tracer mode tells the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// For the console.
    pub text: String,
    /// Whether every command of the box is to be ended.
    pub end_commands: bool,
}
