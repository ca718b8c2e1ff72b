//! Protocol between the server and the agent in a box.
//!
//! HTTP/2 over one byte stream that the provider supplies. Every request carries
//! [`VERSION_HEADER`]; an agent of another version answers `505` with its own in the same header.
//! Requests and answers are JSON, file contents are raw bytes, and a command's streams are
//! [`frame`]s. A failure is an HTTP status of 400 or above with a [`Failure`] as body.
//!
//! | method and path | query or body | answer |
//! |---|---|---|
//! | `GET /hello` | – | [`Hello`] |
//! | `POST /deadline` | [`Deadline`] | `{}` |
//! | `POST /exec` | frames, the first is [`frame::Kind::Start`] with an [`Exec`] | frames, the last is [`frame::Kind::Exit`] with an [`Exit`]; named by [`COMMAND_HEADER`] |
//! | `POST /exec/control` | [`Control`] | `{}`, also when the command has ended |
//! | `POST /processes` | – | array of [`ProcessInfo`], by number |
//! | `POST /processes/of-pid` | [`Pid`] | array of those [`ProcessInfo`] that have this process id, or had it |
//! | `POST /processes/start` | [`StartProcess`] | [`ProcessInfo`] |
//! | `POST /processes/attach` | [`Attach`] in [`REQUEST_HEADER`], frames of stdin | frames |
//! | `POST /processes/input` | [`ProcessInput`] in [`REQUEST_HEADER`], raw bytes | `{}`, once the process has taken them |
//! | `POST /processes/remove` | [`ProcessOnly`] | `{}`, once it has ended |
//! | `GET /file` | [`ReadFile`] | raw bytes, described by [`FILE_HEADER`] |
//! | `PUT /file` | [`WriteFile`] in [`REQUEST_HEADER`], raw bytes | `{}` |
//! | `GET /archive` | [`Archive`] in [`REQUEST_HEADER`] | a tar |
//! | `PUT /archive` | [`PathOnly`] in [`REQUEST_HEADER`], a tar | [`Unpacked`] |
//! | `POST /files/delete` | [`Delete`] | `{}` |
//! | `POST /files/move` | [`Rename`] | `{}` |
//! | `POST /files/chmod` | [`Chmod`] | `{}` |
//! | `POST /files/stat` | [`PathOnly`] | [`FileInfo`] |
//! | `POST /files/list` | [`PathOnly`] | array of [`FileInfo`] |
//! | `POST /files/glob` | [`Glob`] | array of strings |
//! | `POST /files/search` | [`Search`] | lines of [`SearchRow`] |
//! | `POST /files/replace` | [`Replace`] | lines of [`ReplaceRow`] |
//! | `POST /files/watch` | [`WatchFiles`] | lines of [`WatchRow`], until the path is gone |
//! | `POST /files/watchers/add` | [`WatchFiles`] | [`Watcher`] |
//! | `POST /files/watchers/take` | [`Watcher`] | array of [`WatchRow`]: all changes since the last time |
//! | `POST /files/watchers/remove` | [`Watcher`] | `{}` |
//! | `POST /files/xattrs` | [`XattrsOf`] | array of [`Xattrs`], one for each path |
//! | `POST /files/make-dir` | [`PathOnly`] | `{}` |
//! | `POST /files/resolve` | [`PathOnly`] | [`FileInfo`] of what the path leads to, with its real path |
//! | `POST /account` | [`AccountOf`] | [`Account`] |
//! | `POST /files/manifest` | [`Manifest`] | lines of [`ManifestRow`] |
//! | `POST /files/pack` | [`Pack`] | a tar |
//! | `POST /files/amend` | [`Amend`] | a line with [`Amended`] |
//! | `POST /console` | [`Console`] | array of strings |
//! | `POST /ports` | – | array of [`ListeningPort`] |
//! | `POST /ports/watch` | [`WatchPorts`] | lines of [`PortChange`], until a later such request or the end of the box |
//! | `POST /connect` | [`Connect`] in [`REQUEST_HEADER`], raw bytes to the program | raw bytes from it |
//! | `POST /listen` | [`Listen`] | lines of [`ListenRow`], as long as the port is listened on |
//! | `POST /listen/accept` | [`ListenAccept`] in [`REQUEST_HEADER`], raw bytes to the program | raw bytes from it |
//! | `POST /listen/refuse` | [`ListenRefuse`] | `{}` |
//! | `POST /egress` | – | lines of [`EgressRow`], until a later such request or the end of the box |
//! | `POST /egress/accept` | [`EgressAccept`] in [`REQUEST_HEADER`], raw bytes to the program | raw bytes from it |
//! | `POST /egress/refuse` | [`EgressRefuse`] | `{}` |
//! | `POST /trust` | [`Trust`] | `{}` |
//! | `POST /freeze` | – | `{}` once no process of the box runs, which is a machine; they go on if the caller leaves before |
//! | `POST /thaw` | – | `{}` |
//! | `POST /restored` | [`Restored`] | `{}` |
//!
//! Requests about files are carried out as the user of [`USER_HEADER`], if they have it.
//!
//! `GET /file` takes its [`ReadFile`] in [`REQUEST_HEADER`] too: JSON,
//! percent-encoded outside printable ASCII, so that any path fits a header. The end of either body
//! of `POST /connect`, `POST /listen/accept` and `POST /egress/accept` is the end of what that side
//! writes; a reset is one of the connection. So is [`RESET_TRAILER`] after what the program sends: a
//! reset could overtake it. Other answers that break off end with [`FAILURE_TRAILER`] where the reason
//! is known.
//!
//! # Connections out of the box
//!
//! Programs of the box ask the agent's proxy, on the loopback of the box, for connections. Each one
//! is a row of the answer to the newest `POST /egress`, and stays open until it is accepted or
//! refused, the program hangs up, or [`EGRESS_WAIT`] has passed. What an earlier receiver has left
//! unanswered is a row of the next one again, with the same number.

//! # Background processes
//!
//! A process that was started with `POST /processes/start` belongs to no connection. The agent keeps its
//! output, of both streams together, under positions: the number of bytes that were written before. The
//! answer to `POST /processes/attach` is frames of output, a [`frame::Kind::Position`] before the first one
//! and wherever output is missing, and the [`Exit`] once the process has ended; without `follow` it ends at
//! the newest byte. Any number of readers may follow one process, and each may send input.
//! `POST /exec/control` takes the number of a process as that of a command.

//! # Changes of ports
//!
//! The agent keeps what it has reported: the answer to `POST /ports/watch` begins with what is different
//! from then, for the first one from no port at all. At most [`PORT_CHANGES_BURST`] lines come at once,
//! and in the long run one every [`PORT_CHANGE_EVERY`]; a change that waits for its turn and is undone
//! meanwhile is not reported.

#![warn(missing_docs)]

mod account;
mod boot;
mod command;
mod container;
mod egress;
mod failure;
pub mod file_text;
pub mod frame;
mod launch;
mod listen;
mod machine;
pub mod output;
mod ports;
mod process;
mod search;
mod size_view;
mod trace;
mod tree;
mod watch;
mod xattrs;

use serde::{Deserialize, Serialize};

pub use account::{Account, AccountOf, USER_HEADER};
pub use boot::{Boot, Defaults, Diverted, Network, Traced};
pub use command::{Action, Control, Exec, Exit, TerminalSize};
pub use container::{AGENT_DIR, AGENT_PROGRAM, AGENT_RUN_DIR, AGENT_SOCKET};
pub use egress::{
    EGRESS_CONNECTIONS_MAX, EGRESS_HOST_BYTES_MAX, EGRESS_MESSAGE_BYTES_MAX, EGRESS_ROW_BYTES_MAX, EGRESS_WAIT,
    EgressAccept, EgressReason, EgressRefuse, EgressRow,
};
pub use failure::{Failure, FailureKind};
pub use launch::{
    CgroupDir, LAUNCH_LINE_BYTES_MAX, LAUNCH_LISTENER, Launch, LaunchReport, Overlay, Slot, SoftLimits, Storage,
};
pub use listen::{
    LISTEN_CONNECTIONS_MAX, LISTEN_ROW_BYTES_MAX, LISTENERS_MAX, Listen, ListenAccept, ListenRefuse, ListenRow,
};
pub use machine::{
    MACHINE_AGENT_PORT, MACHINE_BOOT_PORT, MACHINE_ENTROPY_BYTES, MACHINE_LINE_BYTES_MAX, Machine, MachineReport,
    Restored, Vmm,
};
pub use ports::{
    Connect, ListeningPort, PORT_CHANGE_BYTES_MAX, PORT_CHANGE_EVERY, PORT_CHANGES_BURST, PORTS_MAX, PortChange,
    WatchPorts,
};
pub use process::{
    Attach, AttachFrom, FIRST_READER_WAIT, PROCESS_COMMAND_BYTES_MAX, PROCESS_NAME_BYTES_MAX, PROCESS_NOTE_BYTES_MAX,
    PROCESS_NOTE_KEPT_BYTES_MAX, PROCESSES_MAX, Pid, ProcessInfo, ProcessInput, ProcessOnly, StartProcess,
    process_command, process_name_fault,
};
pub use search::{
    FileScope, PATTERN_BYTES_MAX, REPLACE_FILES_MAX, Replace, ReplaceRow, ReplacedFile, SCOPE_GLOB_BYTES_MAX,
    SCOPE_GLOBS_MAX, SEARCH_CONTEXT_MAX, SEARCH_LINE_BYTES_MAX, SEARCH_MATCHES_MAX, SEARCH_ROW_BYTES_MAX,
    SEARCH_TEXT_BYTES_MAX, Search, SearchBound, SearchEnd, SearchMatch, SearchRow, TextPattern,
};
pub use size_view::{GroupView, SizeFiles, SizeView};
pub use trace::{Bounds, EndTree, HALTED, Halt, Note, Sweep, Trace};
pub use tree::{
    AMEND_FAILURES_MAX, AMENDED_BYTES_MAX, Amend, AmendFailure, Amended, Attributes, CHOSEN_BYTES_MAX,
    CHOSEN_PATHS_MAX, Manifest, ManifestRow, Pack,
};
pub use watch::{
    FileChange, FileChangeKind, WATCH_ROW_BYTES_MAX, WATCHED_DIRECTORIES_MAX, WATCHER_BYTES_MAX, WATCHER_ROWS_MAX,
    WatchFiles, WatchRow, Watcher,
};
pub use xattrs::{NewXattrs, XATTR_PATHS_MAX, XATTRS_BYTES_MAX, Xattrs, XattrsOf};

/// Version of this protocol. Server and agent are built together; their versions differ only when a
/// box outlives an upgrade of the server.
///
/// Since 2 the agent knows the defaults of commands, and the server no longer adds them. Since 3 a
/// command can have a terminal, and be controlled. Since 4 ports can be listed and connected to. Since 5 the agent has a proxy for
/// connections out of the box. Since 6 the box can be made to trust an authority, changes of ports are
/// reported, and ports can be listened on for callers. Since 7 the content of files can be searched and
/// replaced, directories be packed and unpacked, and commands run in the background. Since 9 requests about
/// files can name a user, files be written in place, watchers keep changes, and processes have notes and are
/// found by their process ids.
pub const VERSION: u32 = 9;
/// Header with [`VERSION`] on every request, and on an answer of 505.
pub const VERSION_HEADER: &str = "tidebox-protocol";
/// Header with the JSON of requests whose body is file content.
pub const REQUEST_HEADER: &str = "tidebox-request";
/// Header with the [`FileInfo`] of a file that is being read: JSON, encoded like
/// [`REQUEST_HEADER`].
pub const FILE_HEADER: &str = "tidebox-file";

/// Trailer of a connection's bytes that says that the connection was reset after them.
pub const RESET_TRAILER: &str = "tidebox-reset";
/// Trailer of an answer that broke off, with the [`Failure`]: JSON, encoded like [`REQUEST_HEADER`].
pub const FAILURE_TRAILER: &str = "tidebox-failure";

/// Send buffer that either side sets on the agent's socket, in bytes, of which the kernel makes twice as
/// many: what an ordinary user may set. With the kernel's default the two take turns more often.
pub const SOCKET_BUFFER_BYTES: usize = 208 * 1024;
/// Header with the number of a running command, on the answer to its start. An agent never uses a
/// number twice.
pub const COMMAND_HEADER: &str = "tidebox-command";

/// Largest JSON answer that the server accepts from an agent, in bytes: 10,000 paths of 4 KiB.
pub const ANSWER_BYTES_MAX: usize = 48 * 1024 * 1024;
/// Longest name of a user or a group in a [`FileInfo`], in bytes.
pub const OWNER_BYTES_MAX: usize = 32;
/// Bytes that JSON takes for one entry of a list besides name, path and target.
pub const ENTRY_BYTES: usize = 256;
/// Largest sum of the entries of a list, in bytes, each with [`ENTRY_BYTES`]: a third of an answer,
/// since JSON may need more than one byte for one of theirs.
pub const LIST_BYTES_MAX: usize = ANSWER_BYTES_MAX / 3;
/// Maximum number of entries of one list.
pub const LIST_ENTRIES_MAX: usize = LIST_BYTES_MAX / ENTRY_BYTES;
/// Maximum number of paths of one glob.
pub const GLOB_RESULTS_MAX: usize = 10_000;
/// Maximum number of console lines that are kept and returned.
pub const CONSOLE_LINES_MAX: usize = 10_000;
/// Maximum size of all console lines that are kept and returned, in bytes.
pub const CONSOLE_BYTES_MAX: usize = 1024 * 1024;
/// Longest path, in bytes: the kernel's `PATH_MAX`.
pub const PATH_BYTES_MAX: usize = 4096;

/// Returns the fault of a `path` that no box can have, as a message for the caller; `None` if it is
/// a valid path. Both sides check, since neither trusts the other.
#[must_use]
pub fn path_fault(path: &str) -> Option<String> {
    if path.is_empty() {
        Some("the path is empty".to_owned())
    } else if path.len() > PATH_BYTES_MAX && file_text::unescaped(path).len() > PATH_BYTES_MAX {
        Some(format!("the path is longer than {PATH_BYTES_MAX} bytes"))
    } else if path.contains('\0') {
        Some("the path contains a NUL".to_owned())
    } else if !path.starts_with('/') {
        Some(format!("the path `{path}` must be absolute and start with /"))
    } else {
        None
    }
}

/// Authority that programs of the box are to trust, in the place of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Its certificate, as PEM.
    pub certificate: String,
}

/// Versions of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol version: [`VERSION`] of the agent.
    pub protocol: u32,
    /// Release that the agent was built with.
    pub version: String,
}

/// Time at which the box ends by itself unless a server extends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// Milliseconds from now. The sender adds the grace that it wants.
    pub in_ms: u64,
}

/// A file to read, and the part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    /// Absolute path of the file.
    pub path: String,
    /// Position of the first byte.
    #[serde(default)]
    pub offset: u64,
    /// Maximum number of bytes; `None` for all that follow.
    #[serde(default)]
    pub length: Option<u64>,
}

/// Destination of the request's body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFile {
    /// Absolute path. Missing parents are made with mode 0755.
    pub path: String,
    /// Permission bits; `None` keeps those of an existing file, else 0644.
    #[serde(default)]
    pub mode: Option<u32>,
    /// True to write into the file itself, which then belongs to the user of the request, instead of
    /// replacing it by a complete one. `mode` is ignored.
    #[serde(default)]
    pub in_place: bool,
    /// Extended attributes that the file gets; `None` leaves them. Counts with `in_place` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<NewXattrs>,
}

/// A file or directory to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// Absolute path; a link itself is removed, not what it points to.
    pub path: String,
    /// True to remove directories that are not empty too.
    pub recursive: bool,
}

/// A path to move; an existing file at the new path is replaced, as `rename(2)` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// Absolute path of the source.
    pub old_path: String,
    /// Absolute path of the destination. Missing parents are made with mode 0755.
    pub new_path: String,
}

/// New permission bits of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chmod {
    /// Absolute path of the file.
    pub path: String,
    /// Permission bits, at most 0o7777.
    pub mode: u32,
}

/// A request that consists of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOnly {
    /// Absolute path in the box.
    pub path: String,
}

/// A request for a tar of a file, or of a directory with all that is below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    /// Absolute path in the box.
    pub path: String,
    /// True to read as the agent's own user, and to break off at what cannot be read, which is left out
    /// otherwise.
    #[serde(default)]
    pub is_whole: bool,
}

/// Account of an archive that was unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Unpacked {
    /// Files, directories and links of the archive.
    pub members: u64,
    /// Bytes of all its files.
    pub bytes: u64,
}

/// A search for paths by a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glob {
    /// Absolute pattern of `*`, `?`, `[...]`, `{a,b}` and `**`.
    pub pattern: String,
}

/// A request for lines of the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// Maximum number of lines; the newest are returned.
    pub lines: usize,
}

/// A file, directory or symbolic link; a link is not followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Last component of the path; `/` for the root.
    pub name: String,
    /// Absolute path as requested, without `.` and `..`.
    pub path: String,
    /// Size in bytes, as in `st_size`.
    pub size: u64,
    /// True for a directory.
    pub is_dir: bool,
    /// True for a symbolic link.
    pub is_symlink: bool,
    /// Target of a symbolic link; `None` for anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Time of the last change of its content, in milliseconds since 1970-01-01 UTC; negative
    /// before.
    pub modified_ms: i64,
    /// Permission bits: the lowest twelve bits of `st_mode`.
    pub mode: u32,
    /// Name of its user, of at most [`OWNER_BYTES_MAX`] bytes; its number as text if it has no such name.
    #[serde(default)]
    pub owner: String,
    /// Name of its group, likewise.
    #[serde(default)]
    pub group: String,
}
