//! What the server and the agent in a box say to each other.
//!
//! HTTP/2 over one byte stream that the provider supplies. Every request
//! carries [`VERSION_HEADER`]; an agent that speaks another version answers
//! `505` with its own in the same header. Requests and answers are JSON, file
//! contents are raw bytes, and a command's streams are [`frame`]s. Failures
//! are an HTTP status of 400 or above with a [`Failure`] as body.
//!
//! | method and path | query or body | answer |
//! |---|---|---|
//! | `GET /hello` | – | [`Hello`] |
//! | `POST /deadline` | [`Deadline`] | `{}` |
//! | `POST /exec` | frames, the first is [`frame::Kind::Start`] with an [`Exec`] | frames, the last is [`frame::Kind::Exit`] with an [`Exit`]; named by [`COMMAND_HEADER`] |
//! | `POST /exec/control` | [`Control`] | `{}`, also when the command has ended |
//! | `GET /file` | [`ReadFile`] | raw bytes, described by [`FILE_HEADER`] |
//! | `PUT /file` | [`WriteFile`] in [`REQUEST_HEADER`], raw bytes | `{}` |
//! | `POST /files/delete` | [`Delete`] | `{}` |
//! | `POST /files/move` | [`Rename`] | `{}` |
//! | `POST /files/chmod` | [`Chmod`] | `{}` |
//! | `POST /files/stat` | [`PathOnly`] | [`FileInfo`] |
//! | `POST /files/list` | [`PathOnly`] | array of [`FileInfo`] |
//! | `POST /files/glob` | [`Glob`] | array of strings |
//! | `POST /console` | [`Console`] | array of strings |
//!
//! `GET /file` takes its [`ReadFile`] in [`REQUEST_HEADER`] too: JSON,
//! percent-encoded outside printable ASCII, so that any path fits a header.

mod container;
pub mod frame;
mod launch;
mod trace;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use container::{AGENT_DIR, AGENT_PROGRAM, AGENT_RUN_DIR, AGENT_SOCKET};
pub use launch::{
    Boot, CgroupDir, Defaults, LAUNCH_LINE_BYTES_MAX, Launch, LaunchReport, Overlay, Slot, SoftLimits, Storage,
};
pub use trace::{Bounds, EndTree, Note, Sweep, Trace, Traced};

/// The version of this protocol. Server and agent are built together and only
/// meet others when a box outlives an upgrade of the server.
///
/// Since 2 the agent knows the defaults of commands, and the server no longer
/// adds them. Since 3 a command can have a terminal, and be controlled.
pub const VERSION: u32 = 3;
/// Carries [`VERSION`] on every request, and on an answer of 505.
pub const VERSION_HEADER: &str = "tidebox-protocol";
/// Carries the JSON of requests whose body is file content.
pub const REQUEST_HEADER: &str = "tidebox-request";
/// Carries the [`FileInfo`] (JSON, encoded like [`REQUEST_HEADER`]) of a file that is being read.
pub const FILE_HEADER: &str = "tidebox-file";

/// Carries the number of a running command on the answer to its start; no other
/// command of the agent ever has the same.
pub const COMMAND_HEADER: &str = "tidebox-command";

/// The largest JSON answer that the server accepts from an agent, in bytes:
/// 10,000 paths of 4 KiB.
pub const ANSWER_BYTES_MAX: usize = 48 * 1024 * 1024;
/// What JSON takes for one entry of a list besides name, path and target, in bytes.
pub const ENTRY_BYTES: usize = 160;
/// All entries of a list together, in bytes, each with [`ENTRY_BYTES`]. JSON may need
/// more than one byte for one of theirs.
pub const LIST_BYTES_MAX: usize = ANSWER_BYTES_MAX / 3;
/// The most entries that one list gives.
pub const LIST_ENTRIES_MAX: usize = LIST_BYTES_MAX / ENTRY_BYTES;
/// The most paths that one glob gives.
pub const GLOB_RESULTS_MAX: usize = 10_000;
/// The most console lines that are kept and given.
pub const CONSOLE_LINES_MAX: usize = 10_000;
/// All console lines that are kept and given together, in bytes.
pub const CONSOLE_BYTES_MAX: usize = 1024 * 1024;
/// The longest path, in bytes, as the kernel has it.
pub const PATH_BYTES_MAX: usize = 4096;

/// Why `path` can be no path in any box, in words for who asked; `None` if it can be one.
/// Both sides ask, since neither believes the other.
#[must_use]
pub fn path_fault(path: &str) -> Option<String> {
    if path.is_empty() {
        Some("the path is empty".to_owned())
    } else if path.len() > PATH_BYTES_MAX {
        Some(format!("the path is longer than {PATH_BYTES_MAX} bytes"))
    } else if path.contains('\0') {
        Some("the path holds a NUL".to_owned())
    } else if !path.starts_with('/') {
        Some(format!("the path `{path}` must be absolute: it has to start with /"))
    } else {
        None
    }
}

/// What an agent says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the agent.
    pub protocol: u32,
    /// The release that the agent was built with.
    pub version: String,
}

/// When the box ends by itself, should no server come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// Milliseconds from now. The sender adds the grace it wants.
    pub in_ms: u64,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The program and its arguments; never empty. A program without a slash is
    /// looked up in the `PATH` that the command gets.
    pub argv: Vec<String>,
    /// The environment of the sandbox and the request. The agent adds what is
    /// missing of [`Defaults::env`], and `PATH`, `HOME`, `LANG` and `TERM`.
    pub env: BTreeMap<String, String>,
    /// The directory to start in; absolute, resolved inside the box. `None` for
    /// [`Defaults::workdir`].
    #[serde(default)]
    pub workdir: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; `None` for [`Defaults::user`].
    #[serde(default)]
    pub user: Option<String>,
    /// After so many milliseconds the whole process tree is killed.
    pub timeout_ms: u64,
    /// Whether stdin frames will follow. Without, stdin is `/dev/null`.
    pub stdin: bool,
    /// A terminal instead of pipes: what is written to it comes as stdout alone,
    /// and the end of stdin is typed into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

/// How large a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Characters in a line.
    pub cols: u16,
    /// Lines.
    pub rows: u16,
}

/// What is to be done to a running command. It does not wait behind its stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Which, from [`COMMAND_HEADER`].
    pub command: u64,
    /// What.
    pub action: Action,
}

/// What can be done to a running command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Its terminal gets another size.
    Resize(TerminalSize),
    /// The processes in the foreground of its terminal get this signal; without a
    /// terminal, the command's own process group.
    Signal(i32),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The command's own code, 128+n for signal n, 124 at the deadline, 126 not
    /// executable, 127 not found.
    pub code: i32,
    /// The deadline ended it.
    #[serde(default)]
    pub timed_out: bool,
    /// The memory limit ended it or one of its children.
    #[serde(default)]
    pub oom_killed: bool,
    /// From start to end of the main process, in microseconds.
    pub duration_us: u64,
}

/// Which file to read, and which part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    /// Absolute path.
    pub path: String,
    /// The first byte.
    #[serde(default)]
    pub offset: u64,
    /// At most so many bytes; `None` for all that follow.
    #[serde(default)]
    pub length: Option<u64>,
}

/// Where the body goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFile {
    /// Absolute path. Missing parents are made with mode 0755.
    pub path: String,
    /// Permission bits; `None` keeps those of an existing file, else 0644.
    #[serde(default)]
    pub mode: Option<u32>,
}

/// A removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// Absolute path; a link itself is removed, not what it points to.
    pub path: String,
    /// Also directories that are not empty.
    pub recursive: bool,
}

/// A move; an existing file at the new path is replaced, as `rename(2)` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// Absolute path.
    pub old_path: String,
    /// Absolute path. Missing parents are made with mode 0755.
    pub new_path: String,
}

/// A change of permission bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chmod {
    /// Absolute path.
    pub path: String,
    /// At most 0o7777.
    pub mode: u32,
}

/// A request that is a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOnly {
    /// Absolute path.
    pub path: String,
}

/// A search by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glob {
    /// Absolute pattern of `*`, `?`, `[...]`, `{a,b}` and `**`.
    pub pattern: String,
}

/// A look at the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// The newest so many lines.
    pub lines: usize,
}

/// A file or directory; a link is described itself, not what it points to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// The last component; `/` for the root.
    pub name: String,
    /// Absolute path as it was asked for, without `.` and `..`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether it is a symbolic link.
    pub is_symlink: bool,
    /// Where a symbolic link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Milliseconds since 1970-01-01 UTC; negative before.
    pub modified_ms: i64,
    /// The lowest twelve bits of `st_mode`.
    pub mode: u32,
}

/// Why an agent did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What a caller can tell apart.
    pub kind: FailureKind,
    /// What is wrong, for the caller.
    pub message: String,
}

/// The kinds of [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request makes no sense, or the box's own permissions forbid it.
    Invalid,
    /// There is no such file.
    NotFound,
    /// The box's file system is full.
    NoSpace,
    /// The box has no process, descriptor or memory left for it.
    Exhausted,
    /// This box cannot do it whatever the request says.
    NotSupported,
    /// A fault of the agent.
    Internal,
}

impl FailureKind {
    /// The HTTP status that carries it.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            FailureKind::Invalid => 400,
            FailureKind::NotFound => 404,
            FailureKind::NoSpace => 507,
            FailureKind::Exhausted => 503,
            FailureKind::NotSupported => 501,
            FailureKind::Internal => 500,
        }
    }
}
