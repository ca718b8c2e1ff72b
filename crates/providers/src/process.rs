//! Background processes of a box: commands that outlive the request that started them.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use domain::Timestamp;
use futures_util::stream::BoxStream;
pub use guest_protocol::{PROCESS_NOTE_BYTES_MAX, process_name_fault};

use crate::{Result, Signal};

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Characters per line, at least 1.
    pub cols: u16,
    /// Number of lines, at least 1.
    pub rows: u16,
}

/// Result of a command that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    /// Exit code: the command's own, 128+n for signal n, 124 at the deadline, 126 if not
    /// executable, 127 if not found.
    pub code: i32,
    /// Signal that ended its main process, if one did and its provider says so.
    pub signal: Option<Signal>,
    /// True if the deadline ended it.
    pub timed_out: bool,
    /// True if the memory limit ended it or one of its children.
    pub oom_killed: bool,
    /// True if the box had reached its limit of processes and threads, `pids`, and the kernel refused
    /// one while the command ran.
    pub pids_exhausted: bool,
    /// Time from the start to the end of the main process.
    pub duration: Duration,
}

/// Options of a command in the background, beside those of one in the foreground.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Background {
    /// Name that no other running process of the box has.
    pub name: Option<String>,
    /// Time without a reader after which it is killed and forgotten; `None` to keep it as long as the
    /// box.
    pub linger: Option<Duration>,
    /// True to have the process wait for its readers, instead of losing its oldest output.
    pub is_lossless: bool,
    /// True to have the process wait for each of its readers while it has any; see
    /// [`crate::Guest::attach_process`].
    pub is_paced: bool,
    /// Text of the caller that the box keeps with the process, at most [`PROCESS_NOTE_BYTES_MAX`] bytes.
    pub note: Option<String>,
    /// First bytes of its stdin.
    pub input: Bytes,
    /// Its stdin after these bytes.
    pub stdin: BackgroundStdin,
}

/// Stdin of a background process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackgroundStdin {
    /// Nothing more can be written.
    #[default]
    Ends,
    /// It stays open for [`crate::Guest::process_input`], and for readers that send input.
    Open,
}

/// A background process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Number of the process, never used twice in a box.
    pub process: u64,
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// The program and its arguments, shortened.
    pub command: String,
    /// Process id in the box, while it runs: a command in the box can signal it.
    pub pid: Option<u32>,
    /// Process id that it had, once it has ended, if the provider says so. Another process may have it by
    /// then.
    pub ended_pid: Option<u32>,
    /// True while its stdin can be written.
    pub is_stdin_open: bool,
    /// Its note, while it runs; a longer one than 512 bytes is gone afterwards.
    pub note: Option<String>,
    /// Size of its terminal, if it has one.
    pub terminal: Option<TerminalSize>,
    /// Time of the start, by the clock of the box.
    pub started: Timestamp,
    /// Its end, if it has ended.
    pub exit: Option<ExitStatus>,
    /// Position of the first byte of output that is kept: the number of bytes written before.
    pub first: u64,
    /// Position after the last byte of output.
    pub end: u64,
    /// Number of readers of its output.
    pub readers: usize,
}

/// Part of a process's output to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachFrom {
    /// This many bytes of output are known already.
    Position(u64),
    /// The screen of the terminal as it is now, and what follows; without a terminal all output that is
    /// kept.
    Screen,
}

/// A reader's request for the output of a process.
pub struct Attach {
    /// Part of the output to begin with.
    pub from: AttachFrom,
    /// True to go on until the process ends; otherwise the output ends at its newest byte.
    pub follow: bool,
    /// Input of the reader; `None` for none. Its end leaves the process's stdin as it is.
    pub input: Option<BoxStream<'static, ProcessInput>>,
}

impl fmt::Debug for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attach").field("from", &self.from).field("follow", &self.follow).finish_non_exhaustive()
    }
}

/// Input of a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessInput {
    /// Bytes for stdin.
    Bytes(Bytes),
    /// The end of stdin.
    End,
}

/// An event of a process's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Bytes that draw the screen of the terminal. They are not part of the output.
    Screen(Bytes),
    /// Position of the byte that comes next. It is the first event but for the screen; later ones mean
    /// that what lies between is no longer kept.
    Position(u64),
    /// Bytes written to stdout; never empty.
    Stdout(Bytes),
    /// Bytes written to stderr; never empty.
    Stderr(Bytes),
    /// End of the process, the last event.
    Exit(ExitStatus),
}

/// Output of a process, as a reader sees it. Dropping it leaves the process as it is.
pub type ProcessEvents = BoxStream<'static, Result<ProcessEvent>>;

/// An action on a background process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessAction {
    /// A new size of its terminal.
    Resize(TerminalSize),
    /// A signal for what is in the foreground of its terminal; without one, for its process group.
    Signal(Signal),
    /// A signal for its process group, also if another one is in the foreground of its terminal.
    SignalCommand(Signal),
}
