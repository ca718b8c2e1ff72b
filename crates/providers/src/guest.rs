//! The inside of a box.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::Timestamp;
use futures_util::stream::BoxStream;
use guest_protocol::PATH_BYTES_MAX;

use crate::{Result, Signal};

/// The highest permission bits.
pub(crate) const MODE_MAX: u32 = 0o7777;

/// The most of one stream out of a box that waits here for a reader that has
/// stopped, in bytes.
pub const STREAM_BYTES_MAX: usize = 512 * 1024;

/// Raw bytes in pieces. Dropping it stops whoever produces them.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// What a command writes, in order per stream, and at last how it ended.
/// Dropping it kills the command with all its descendants.
pub type OutputStream = BoxStream<'static, Result<OutputEvent>>;

/// A command to run in a box.
pub struct Command {
    /// The program and its arguments; never empty.
    pub argv: Vec<String>,
    /// The environment of the request and the sandbox; the guest adds what every
    /// process needs (`PATH`, `HOME`, `LANG`, `TERM`) where unset.
    pub env: BTreeMap<String, String>,
    /// Absolute path; `None` for the box's own default.
    pub workdir: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; `None` for the box's own user.
    pub user: Option<String>,
    /// After this the whole process tree is killed.
    pub timeout: Duration,
    /// `None` is an empty stdin.
    pub stdin: Option<ByteStream>,
    /// A terminal instead of three streams: all that is written comes as stdout,
    /// the end of stdin is typed into it, and `TERM` is `xterm-256color` where
    /// nobody says otherwise.
    pub terminal: Option<TerminalSize>,
}

/// How large a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Characters in a line, at least 1.
    pub cols: u16,
    /// Lines, at least 1.
    pub rows: u16,
}

/// A command that can be controlled while it runs.
pub struct Interactive {
    /// What it writes, and how it ends. Dropping it kills the command.
    pub output: OutputStream,
    /// What else can be done to it.
    pub control: Arc<dyn Control>,
}

impl fmt::Debug for Interactive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interactive").field("control", &self.control).finish_non_exhaustive()
    }
}

/// What can be done to a running command besides writing to its stdin. It waits
/// neither for a command that does not read nor for a reader that has stopped,
/// and is without effect after the end.
#[async_trait]
pub trait Control: fmt::Debug + Send + Sync {
    /// Gives the terminal another size, of which its foreground is told.
    ///
    /// - Of a command without a terminal it is [`crate::Error::Invalid`].
    async fn resize(&self, size: TerminalSize) -> Result<()>;

    /// Sends a signal to the processes in the foreground of the terminal, or to
    /// the command's own process group where there is no terminal.
    async fn signal(&self, signal: Signal) -> Result<()>;
}

impl fmt::Debug for Command {
    /// Without the environment, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("argv", &self.argv).field("workdir", &self.workdir).finish_non_exhaustive()
    }
}

/// One thing that a running command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// It wrote to stdout; never empty.
    Stdout(Bytes),
    /// It wrote to stderr; never empty.
    Stderr(Bytes),
    /// It ended. Nothing follows.
    Exit(ExitStatus),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    /// The command's own code, 128+n for signal n, 124 at the deadline, 126 not
    /// executable, 127 not found.
    pub code: i32,
    /// The deadline ended it.
    pub timed_out: bool,
    /// The memory limit ended it or one of its children.
    pub oom_killed: bool,
    /// From start to end of the main process.
    pub duration: Duration,
}

/// A file or directory; a link is described itself, not what it points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// The last component; `/` for the root.
    pub name: String,
    /// Absolute path, without `.` and `..`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether it is a symbolic link.
    pub is_symlink: bool,
    /// Where a symbolic link points.
    pub target: Option<String>,
    /// When its content changed last.
    pub modified: Timestamp,
    /// The lowest twelve bits of the mode.
    pub mode: u32,
}

impl FileInfo {
    /// Whether there can be such a file: what others say of theirs is checked.
    pub(crate) fn can_be(&self) -> bool {
        let is_root = self.path == "/" && self.name == "/";
        let name_fits = is_root || !self.name.is_empty() && !self.name.contains(['/', '\0']);
        let target_fits = self.target.as_ref().is_none_or(|target| !target.contains('\0'));
        // The path of a directory's entry may be longer than what can be asked for.
        let path_fits =
            self.path.starts_with('/') && self.path.len() <= 2 * PATH_BYTES_MAX && !self.path.contains('\0');
        name_fits && target_fits && path_fits && self.mode <= MODE_MAX
    }
}

/// A file that is being read.
pub struct FileContent {
    /// The file as it was when it was opened.
    pub info: FileInfo,
    /// The bytes asked for; fewer if the file ends before.
    pub bytes: ByteStream,
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileContent").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Everything that happens inside a box.
///
/// Paths are absolute and resolved inside the box, by the box, as its user:
/// no path and no link reaches the host. A path that is relative, empty, over
/// 4,096 bytes, or holds a NUL is [`crate::Error::Invalid`]; one that does not
/// exist is [`crate::Error::NotFound`]; a full box is [`crate::Error::NoSpace`];
/// and a box that has ended is [`crate::Error::Gone`].
#[async_trait]
pub trait Guest: fmt::Debug + Send + Sync {
    /// Runs a command.
    ///
    /// - stdout and stderr come apart, byte for byte, and a reader that stops
    ///   reading stops the command and nothing else.
    /// - A program that does not exist is exit code 127, one that cannot be
    ///   executed 126, a signal n 128+n; none of these is an error.
    /// - At the deadline every descendant is killed, those too that left the
    ///   session or the process group, and the code is 124 with `timed_out`.
    /// - It ends when the main process has ended and its pipes are drained or
    ///   250 ms have passed; children left behind go on until the box ends.
    /// - Dropping the stream kills the command and its descendants.
    /// - A working directory that does not exist is [`crate::Error::Invalid`].
    async fn exec(&self, command: Command) -> Result<OutputStream>;

    /// Runs a command that can be controlled while it runs; else as [`Guest::exec`].
    ///
    /// - A provider without terminals, or one that cannot control what runs,
    ///   answers [`crate::Error::NotSupported`].
    async fn exec_interactive(&self, command: Command) -> Result<Interactive>;

    /// Reads a regular file, from byte `offset`, at most `length` bytes.
    ///
    /// - Follows links inside the box.
    /// - Anything but a regular file is [`crate::Error::Invalid`], without waiting.
    async fn read_file(&self, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent>;

    /// Writes a file whole or not at all.
    ///
    /// - Missing parents are made with mode 0755.
    /// - `mode` of `None` keeps that of an existing file, else it is 0644.
    /// - A failure of `content` leaves what was there before, and no other file.
    async fn write_file(&self, path: &str, mode: Option<u32>, content: ByteStream) -> Result<()>;

    /// Removes a file, a link itself, or a directory.
    ///
    /// - A directory that is not empty is [`crate::Error::Invalid`] unless `recursive`.
    /// - Does not follow links.
    async fn delete(&self, path: &str, recursive: bool) -> Result<()>;

    /// The entries of a directory, sorted by name, links not followed.
    async fn list(&self, path: &str) -> Result<Vec<FileInfo>>;

    /// One file, directory or link itself.
    async fn stat(&self, path: &str) -> Result<FileInfo>;

    /// Moves a file or directory; an existing file at `new` is replaced.
    async fn rename(&self, old: &str, new: &str) -> Result<()>;

    /// Sets permission bits (at most 0o7777); follows links.
    async fn chmod(&self, path: &str, mode: u32) -> Result<()>;

    /// The paths that match `*`, `?`, `[...]`, `{a,b}` and `**`, sorted.
    ///
    /// - None is an empty list.
    /// - More than 10,000 are [`crate::Error::Invalid`].
    async fn glob(&self, pattern: &str) -> Result<Vec<String>>;

    /// The newest `lines` console lines: what the box's first process and its
    /// background processes wrote.
    async fn console(&self, lines: usize) -> Result<Vec<String>>;

    /// Tells the box to end by itself `after` from now, should no server come.
    async fn set_deadline(&self, after: Duration) -> Result<()>;
}
