//! Protocol between the `proot` provider and three modes of the agent binary: the tracer mode, which
//! starts and supervises PRoot, the sweep mode, which ends a box, and the halt mode, which has one stand
//! still.
//!
//! All are started with `trace`, `sweep` or `halt` as their only argument and one line of JSON ([`Trace`],
//! [`Sweep`], [`Halt`]) on descriptor 0, a socket or pipe. The tracer mode has the listening socket of the agent on
//! 1, answers with lines of [`crate::LaunchReport`], and closes 0 when PRoot has been executed. It
//! stays, enforces the limits, and ends everything of the box when PRoot or the agent ends. The
//! sweep mode answers with its exit code: 0 when no process of the box is alive any more. The halt mode
//! writes [`HALTED`] to 1 when nothing of the box runs, and ends with 0 once descriptor 0 is closed and
//! everything goes on; with another code nothing was halted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::boot::Boot;

/// Parameters of one box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Directory of the box on the host. The file `pid` is written into it before anything of the
    /// box runs: two lines of `<pid> <start time in clock ticks>`, the first for the tracer mode,
    /// the second for PRoot. It contains the box's root, `root`, and `life`, a FIFO that the agent
    /// holds open while it lives.
    pub dir: String,
    /// Path of PRoot, and its arguments up to the agent's own.
    pub argv: Vec<String>,
    /// Parameters of the agent. The tracer mode fills in the descriptors.
    pub boot: Boot,
    /// Whole environment of PRoot and, through it, of the agent.
    pub env: BTreeMap<String, String>,
    /// Uid and gid that everything of the box runs as and nothing else does; `None` for those of
    /// the caller.
    pub id: Option<u32>,
    /// Limits of the box.
    pub bounds: Bounds,
}

/// Limits that are watched from outside the box, or set as process limits; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bounds {
    /// Mebibytes above which the largest process is killed.
    pub memory_mb: u32,
    /// Number of the host's processors that the box may use.
    pub vcpus: u32,
    /// Maximum number of processes and threads. The kernel enforces it for a box with an id of its
    /// own; otherwise all commands are ended above it.
    pub pids: u32,
    /// Mebibytes that the files of the box may take above what they took at its start. Above it all
    /// commands are ended. No file can be larger.
    pub disk_mb: u32,
    /// Bytes of the files of the box that do not count to [`Bounds::disk_mb`]; `None` for those at its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_bytes: Option<u64>,
}

/// A box to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Uid and gid of the box, as [`Trace::id`].
    pub id: Option<u32>,
    /// Pids and start times, as in the file `pid` of the box's directory. Pids that mean another
    /// process by now are left alone.
    pub roots: Vec<(u32, u64)>,
}

/// A box that is to stand still.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    /// Uid and gid of the box, as [`Trace::id`].
    pub id: Option<u32>,
    /// Pids and start times, as in the file `pid` of the box's directory: the first is that of the tracer
    /// mode.
    pub roots: Vec<(u32, u64)>,
}

/// Line of the halt mode once the box stands still.
pub const HALTED: &[u8] = b"halted\n";

/// A request of the agent to the tracer mode, as a line through the FIFO. Below a tracer, `SIGSTOP`
/// does not stop a process, so a tree can be held still only from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndTree {
    /// Root of the tree to end: this process and all its descendants.
    pub root: i32,
}

/// A message of the tracer mode to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Text for the console.
    pub text: String,
    /// True if every command of the box has to be ended.
    pub end_commands: bool,
}
