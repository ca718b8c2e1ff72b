//! Background processes of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::TextEncoding;

/// Header with the number of the process whose output a response streams.
pub const PROCESS_HEADER: &str = "x-process-id";

/// Response to the start of a background process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStarted {
    /// Number of the process in its sandbox.
    pub process_id: u64,
    /// Name of the process, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A background process of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Number of the process; never reused in a sandbox.
    pub process_id: u64,
    /// Name of the process, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The program and its arguments; truncated if long.
    pub command: String,
    /// Text that it was given to keep; of a process that has ended, only if it has at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// State of the process.
    pub state: ProcessState,
    /// Process id inside the sandbox; only while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// True if it has a terminal.
    pub tty: bool,
    /// Columns of the terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cols: Option<u16>,
    /// Rows of the terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u16>,
    /// Time of the start, by the clock of the sandbox.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// Exit code once the process has ended, as for any command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// True if its deadline ended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// True if the memory limit ended it or one of its children.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// True if the kernel refused a process or thread while the process ran because the sandbox reached `pids`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pids_exhausted: bool,
    /// Duration from its start to its end, such as `1.5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Sequence number of the oldest output that is kept.
    pub first_seq: u64,
    /// Sequence number after the newest output: the number of bytes written so far.
    pub last_seq: u64,
    /// Number of clients that read its output.
    pub readers: usize,
}

/// State of a background process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It has not ended.
    Running,
    /// It has ended.
    Exited,
}

/// Input for a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessInput {
    /// Bytes for its stdin.
    #[serde(default)]
    pub data: String,
    /// Encoding of `data`.
    #[serde(default)]
    pub encoding: TextEncoding,
    /// True to close its stdin after `data`.
    #[serde(default)]
    pub eof: bool,
}

/// A signal for the foreground process group of a process's terminal or, without a terminal, for its process group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessSignal {
    /// Name of the signal, such as `SIGTERM`.
    pub signal: String,
}

/// A new size of a process's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessResize {
    /// Columns of the terminal.
    #[schema(minimum = 1, maximum = 65535)]
    pub cols: u16,
    /// Rows of the terminal.
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: u16,
}
