//! Background processes: commands that outlive the request that started them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::command::{Exec, Exit, TerminalSize};

/// Longest name of a process, in bytes.
pub const PROCESS_NAME_BYTES_MAX: usize = 64;
/// Maximum number of processes that a box lists: all that can run at once, and those that have ended
/// and are remembered.
pub const PROCESSES_MAX: usize = 2048;
/// Longest command line in a [`ProcessInfo`], in bytes; the rest is left out.
pub const PROCESS_COMMAND_BYTES_MAX: usize = 1024;
/// Longest note of a process, in bytes.
pub const PROCESS_NOTE_BYTES_MAX: usize = 4 * 1024;
/// Longest note that is kept after the end of its process, in bytes: many ended processes are remembered.
pub const PROCESS_NOTE_KEPT_BYTES_MAX: usize = 512;
/// Longest wait of a paced process for its first reader: its caller may have gone.
pub const FIRST_READER_WAIT: Duration = Duration::from_secs(30);

/// Returns the fault of a `name` that no process can have, as a message for the caller; `None` if it
/// is valid. Both sides check, since neither trusts the other.
#[must_use]
pub fn process_name_fault(name: &str) -> Option<String> {
    let is_valid = (1..=PROCESS_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        // Else it could be taken for the number of another process, or for a path.
        && name.bytes().any(|byte| byte.is_ascii_alphabetic());
    (!is_valid).then(|| {
        format!(
            "a process name has 1 to {PROCESS_NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`, with at least one \
             letter"
        )
    })
}

/// Returns a program and its arguments as a [`ProcessInfo`] shows them.
#[must_use]
pub fn process_command(argv: &[String]) -> String {
    let mut text = argv.join(" ");
    text.truncate(text.floor_char_boundary(PROCESS_COMMAND_BYTES_MAX));
    text
}

/// A process id, as commands in the box see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pid {
    /// The number.
    pub pid: i32,
}

/// A command to start in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartProcess {
    /// The command. With `stdin` it has a stdin, else `/dev/null`.
    pub exec: Exec,
    /// First bytes of its stdin, as base64.
    #[serde(default)]
    pub input: String,
    /// True to end its stdin after these bytes.
    #[serde(default)]
    pub input_ends: bool,
    /// Name that no other running process of the box has.
    #[serde(default)]
    pub name: Option<String>,
    /// Milliseconds without a reader of its output after which it is killed and forgotten; `None` to
    /// keep it as long as the box.
    #[serde(default)]
    pub linger_ms: Option<u64>,
    /// True to have the process wait for its readers, instead of losing the oldest output.
    #[serde(default)]
    pub lossless: bool,
    /// True to have the process wait for each of its readers while it has any, and for its first one at
    /// most [`FIRST_READER_WAIT`]. Without a reader it loses the oldest output.
    #[serde(default)]
    pub paced: bool,
    /// Text of the caller that the agent keeps, at most [`PROCESS_NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A background process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Number of the process, never used twice in a box.
    pub process: u64,
    /// Its name, if it was given one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The program and its arguments, at most [`PROCESS_COMMAND_BYTES_MAX`] bytes.
    pub command: String,
    /// Process id in the box, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Process id that it had, once it has ended. Another process may have it by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_pid: Option<i32>,
    /// True while its stdin can be written.
    #[serde(default)]
    pub stdin_open: bool,
    /// Its note; of one that has ended, only if it has at most [`PROCESS_NOTE_KEPT_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Size of its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Time of the start, in milliseconds since 1970-01-01 UTC.
    pub started_ms: i64,
    /// Its end, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Position of the first byte of output that is kept.
    pub first: u64,
    /// Position after the last byte of output.
    pub end: u64,
    /// Number of readers of its output.
    pub readers: usize,
}

/// A request about one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessOnly {
    /// Number of the process.
    pub process: u64,
}

/// A request for the output of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Number of the process.
    pub process: u64,
    /// Part of the output to begin with.
    pub from: AttachFrom,
    /// True to go on until the process ends.
    pub follow: bool,
}

/// Part of a process's output to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachFrom {
    /// This many bytes of output are known already.
    Position(u64),
    /// The screen of the terminal as it is now, in one [`crate::frame::Kind::Screen`], and what follows;
    /// without a terminal all output that is kept.
    Screen,
}

/// Input for a process, which is the body of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInput {
    /// Number of the process.
    pub process: u64,
    /// True to end its stdin after the body.
    pub end: bool,
}
