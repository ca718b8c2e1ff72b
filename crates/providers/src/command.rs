//! Commands in a box, and their output.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use crate::process::{ExitStatus, TerminalSize};
use crate::{Result, Signal};

/// Stream of raw bytes in pieces. Dropping it stops its producer.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// Output of a command, in order per stream, with the exit as its last event. Dropping it kills
/// the command with all its descendants.
pub type OutputStream = BoxStream<'static, Result<OutputEvent>>;

/// A command to run in a box.
pub struct Command {
    /// The program and its arguments; never empty.
    pub argv: Vec<String>,
    /// Environment of the request and of the sandbox. The guest adds the variables that every
    /// process needs (`PATH`, `HOME`, `LANG`, `TERM`) if they are unset.
    pub env: BTreeMap<String, String>,
    /// Absolute path of the working directory; `None` for the box's default.
    pub workdir: Option<String>,
    /// User to run as: `name`, `uid`, `name:group` or `uid:gid`; `None` for the box's own user.
    pub user: Option<String>,
    /// Deadline: time from the start after which the whole process tree is killed.
    pub timeout: Duration,
    /// Input of the command; `None` for an empty stdin.
    pub stdin: Option<ByteStream>,
    /// Size of a terminal that replaces the three streams; `None` for no terminal. All output
    /// then comes as stdout, the end of stdin is typed into the terminal, and `TERM` is
    /// `xterm-256color` unless `env` sets it.
    pub terminal: Option<TerminalSize>,
}

/// A command that can be controlled while it runs.
pub struct Interactive {
    /// Output and exit of the command. Dropping it kills the command.
    pub output: OutputStream,
    /// Control of the terminal's size, and of signals.
    pub control: Arc<dyn Control>,
}

impl fmt::Debug for Interactive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interactive").field("control", &self.control).finish_non_exhaustive()
    }
}

/// Control of a running command besides its stdin. A call waits neither for a command that does
/// not read nor for a reader that has stopped, and has no effect after the end.
#[async_trait]
pub trait Control: fmt::Debug + Send + Sync {
    /// Resizes the terminal and notifies its foreground processes.
    ///
    /// - A command without a terminal is [`crate::Error::Invalid`].
    async fn resize(&self, size: TerminalSize) -> Result<()>;

    /// Sends a signal to the foreground processes of the terminal, or to the command's own
    /// process group if there is no terminal.
    async fn signal(&self, signal: Signal) -> Result<()>;

    /// Sends a signal to the command's own process group, also if another one is in the foreground of its terminal.
    async fn signal_command(&self, signal: Signal) -> Result<()> {
        self.signal(signal).await
    }
}

impl fmt::Debug for Command {
    /// Omits the environment, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("argv", &self.argv).field("workdir", &self.workdir).finish_non_exhaustive()
    }
}

/// An event of a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Bytes written to stdout; never empty.
    Stdout(Bytes),
    /// Bytes written to stderr; never empty.
    Stderr(Bytes),
    /// End of the command, the last event.
    Exit(ExitStatus),
}
