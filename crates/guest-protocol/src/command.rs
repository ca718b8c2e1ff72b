//! Commands: requests to run and to control them, and how they end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Program and its arguments; never empty. A program without a slash is looked up in the `PATH`
    /// that the command gets.
    pub argv: Vec<String>,
    /// Environment of the sandbox and the request. The agent adds the variables of
    /// [`crate::Defaults::env`] that are missing, and `PATH`, `HOME`, `LANG` and `TERM`.
    pub env: BTreeMap<String, String>,
    /// Directory to start in; absolute, resolved inside the box. `None` for [`crate::Defaults::workdir`].
    #[serde(default)]
    pub workdir: Option<String>,
    /// User to run as: `name`, `uid`, `name:group` or `uid:gid`; `None` for [`crate::Defaults::user`].
    #[serde(default)]
    pub user: Option<String>,
    /// Deadline in milliseconds from the start; at it, the whole process tree is killed.
    pub timeout_ms: u64,
    /// True if stdin frames will follow. Otherwise stdin is `/dev/null`.
    pub stdin: bool,
    /// Size of a terminal to use instead of pipes: all output then comes as stdout, and the end of
    /// stdin is typed into the terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns: characters in a line.
    pub cols: u16,
    /// Rows: lines of the screen.
    pub rows: u16,
}

/// A request to a running command. It does not wait behind the command's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Number of the command, from [`crate::COMMAND_HEADER`].
    pub command: u64,
    /// Action to apply to the command.
    pub action: Action,
}

/// An action on a running command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A new size of the command's terminal.
    Resize(TerminalSize),
    /// A signal for the processes in the foreground of the command's terminal; without a terminal,
    /// for the command's own process group.
    Signal(i32),
    /// A signal for the command's own process group, also if another one is in the foreground of its
    /// terminal.
    SignalCommand(i32),
}

/// Outcome of a command that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code: the command's own, 128+n for signal n, 124 at the deadline, 126 not executable,
    /// 127 not found.
    pub code: i32,
    /// Signal that ended the command's main process, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// True if the deadline ended the command.
    #[serde(default)]
    pub timed_out: bool,
    /// True if the memory limit ended the command or one of its children.
    #[serde(default)]
    pub oom_killed: bool,
    /// True if the box had reached its limit of processes and threads, `pids`, and the kernel refused
    /// one while the command ran.
    #[serde(default)]
    pub pids_exhausted: bool,
    /// Duration from start to end of the main process, in microseconds.
    pub duration_us: u64,
}
