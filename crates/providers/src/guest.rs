//! The inside of a box: commands, files and the console.

#![warn(missing_docs)]

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::Timestamp;
use futures_util::stream::BoxStream;
pub use guest_protocol::Account;
use guest_protocol::PATH_BYTES_MAX;
pub use guest_protocol::{
    AMENDED_BYTES_MAX, Amend, AmendFailure, Amended, Attributes, CHOSEN_BYTES_MAX, CHOSEN_PATHS_MAX, Pack,
};
pub use guest_protocol::{EGRESS_HOST_BYTES_MAX, EgressReason};
pub use guest_protocol::{FileChange, FileChangeKind, WatchRow};
pub use guest_protocol::{
    FileScope, PATTERN_BYTES_MAX, REPLACE_FILES_MAX, Replace, ReplacedFile, SCOPE_GLOB_BYTES_MAX, SCOPE_GLOBS_MAX,
    SEARCH_CONTEXT_MAX, SEARCH_MATCHES_MAX, SEARCH_TEXT_BYTES_MAX, Search, SearchBound, SearchEnd, SearchMatch,
    TextPattern, Unpacked,
};
pub use guest_protocol::{NewXattrs, XATTR_PATHS_MAX, XATTRS_BYTES_MAX, Xattrs};

use crate::command::{ByteStream, Command, Interactive, OutputStream};
use crate::{Attach, Background, Error, ProcessAction, ProcessEvents, ProcessInfo, Result};

/// The highest permission bits.
pub(crate) const MODE_MAX: u32 = 0o7777;

/// Maximum number of bytes of one stream out of a box that are buffered here for a reader that has
/// stopped.
pub const STREAM_BYTES_MAX: usize = 512 * 1024;

/// Metadata of a file or directory. For a link it describes the link, not its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// Last component of the path; `/` for the root.
    pub name: String,
    /// Absolute path, without `.` and `..`.
    pub path: String,
    /// Size of the content, in bytes.
    pub size: u64,
    /// True for a directory.
    pub is_dir: bool,
    /// True for a symbolic link.
    pub is_symlink: bool,
    /// Target of a symbolic link; `None` for anything else.
    pub target: Option<String>,
    /// Time of the last change of the content.
    pub modified: Timestamp,
    /// Permission bits: the lowest twelve bits of the mode.
    pub mode: u32,
    /// Name of its user, its number as text without a name; `None` if the provider does not know it.
    pub owner: Option<String>,
    /// Name of its group, likewise.
    pub group: Option<String>,
}

impl FileInfo {
    /// Checks whether such a file can exist. Agents and other services are not trusted to
    /// describe only such files.
    pub(crate) fn can_be(&self) -> bool {
        let is_root = self.path == "/" && self.name == "/";
        let name_fits = is_root || !self.name.is_empty() && !self.name.contains(['/', '\0']);
        let target_fits = self.target.as_ref().is_none_or(|target| !target.contains('\0'));
        // An entry's path may exceed the limit on requested paths: a directory's path and a name.
        let path_fits =
            self.path.starts_with('/') && self.path.len() <= 2 * PATH_BYTES_MAX && !self.path.contains('\0');
        name_fits && target_fits && path_fits && self.mode <= MODE_MAX
    }
}

/// A TCP socket of a box that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListeningPort {
    /// Number of the port.
    pub port: u16,
    /// Address that it is bound to; `0.0.0.0` and `::` for all.
    pub address: IpAddr,
    /// Process id in the box of a process that holds it, if one is known.
    pub pid: Option<u32>,
    /// Name of that process.
    pub process: Option<String>,
}

/// A port of a box that has begun or ceased to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortChange {
    /// True if it listens now.
    pub is_open: bool,
    /// The port; of one that has ceased, as it was when it began.
    pub port: ListeningPort,
}

/// Stream of changes of the ports of a box. It ends with the box.
pub type PortChanges = BoxStream<'static, Result<PortChange>>;

/// Stream of the connections that processes of a box make to a port that is listened on for a caller.
/// Dropping it ends the listening, and resets the connections that wait.
pub type PortConnections = BoxStream<'static, Result<Box<dyn PortConnection>>>;

/// A connection to such a port, which waits to be accepted. Dropping it resets it.
#[async_trait]
pub trait PortConnection: Send {
    /// Accepts the connection. `input` goes to the process, the result is what it sends; for both
    /// the rules of [`Guest::connect`] hold.
    ///
    /// - A connection that no longer waits is [`crate::Error::NotFound`].
    async fn accept(self: Box<Self>, input: ByteStream) -> Result<ByteStream>;
}

/// Stream of the connections that processes of a box ask for. It ends with the box.
pub type EgressRequests = BoxStream<'static, Result<EgressRequest>>;

/// A connection out of the box that one of its processes asks for. Dropping it refuses it.
pub struct EgressRequest {
    /// Host to connect to, as the process wrote it: a name or an address, or any other text of at
    /// most [`EGRESS_HOST_BYTES_MAX`] bytes; never empty, and without the brackets of an IPv6
    /// address.
    pub host: String,
    /// Port to connect to; never 0.
    pub port: u16,
    /// Way to answer the process.
    pub answer: Box<dyn EgressAnswer>,
}

impl fmt::Debug for EgressRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressRequest").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// Answer to an [`EgressRequest`].
#[async_trait]
pub trait EgressAnswer: Send {
    /// Accepts the connection. `input` goes to the process, the result is what it sends; for both
    /// the rules of [`Guest::connect`] hold.
    ///
    /// - A process that has gone is [`crate::Error::NotFound`].
    async fn accept(self: Box<Self>, input: ByteStream) -> Result<ByteStream>;

    /// Refuses the connection. The process gets the status of the reason and `message`.
    async fn refuse(self: Box<Self>, reason: EgressReason, message: &str) -> Result<()>;
}

/// Stream of changes of files. It ends when the path that is watched is gone, or the box. Dropping it
/// ends the watch.
pub type FileChanges = BoxStream<'static, Result<WatchRow>>;

/// Outcome of a search in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchResult {
    /// Lines that match, by path and number.
    pub matches: Vec<SearchMatch>,
    /// Account of the files.
    pub end: SearchEnd,
}

/// Outcome of a replacement in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaceResult {
    /// Files that were changed, or would be; by path.
    pub files: Vec<ReplacedFile>,
    /// Account of the files.
    pub end: SearchEnd,
}

/// A file opened for reading.
pub struct FileContent {
    /// Metadata of the file at the time it was opened.
    pub info: FileInfo,
    /// The requested bytes; fewer if the file ends earlier.
    pub bytes: ByteStream,
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileContent").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Commands and files inside a box.
///
/// Paths are absolute and resolved inside the box, by the box, as its user: no path and no link
/// reaches the host. A path that is relative, empty, longer than 4,096 bytes, or contains a NUL
/// is [`crate::Error::Invalid`]. A path that does not exist is [`crate::Error::NotFound`]. A full
/// box is [`crate::Error::NoSpace`], and a box that has ended is [`crate::Error::Gone`].
#[async_trait]
pub trait Guest: fmt::Debug + Send + Sync {
    /// Runs a command.
    ///
    /// - stdout and stderr arrive separately, byte for byte. A reader that stops reading stops
    ///   the command and nothing else.
    /// - A program that does not exist is exit code 127, one that cannot be executed 126, and one
    ///   ended by signal n 128+n; none of these is an error.
    /// - At the deadline every descendant is killed, including those that left the session or the
    ///   process group, and the exit has code 124 and `timed_out`.
    /// - The stream ends when the main process has ended and its pipes are drained or 250 ms have
    ///   passed. Children left behind keep running until the box ends.
    /// - Dropping the stream kills the command and its descendants.
    /// - A working directory that does not exist is [`crate::Error::Invalid`].
    async fn exec(&self, command: Command) -> Result<OutputStream>;

    /// Runs a command that can be controlled while it runs. Otherwise the same as
    /// [`Guest::exec`].
    ///
    /// - A provider without terminals, or one that cannot control a running command, returns
    ///   [`crate::Error::NotSupported`].
    async fn exec_interactive(&self, command: Command) -> Result<Interactive>;

    /// Starts a command in the background: it goes on when the caller, or the server, has gone. The
    /// `stdin` of `command` is ignored.
    ///
    /// - It ends by itself, at its deadline, when it is removed, when its linger has passed without a
    ///   reader, and with the box.
    /// - A name that a running process has is [`crate::Error::Conflict`]; an ended one gives it up.
    /// - The same outcomes as for [`Guest::exec`], whose exit codes it has, too.
    /// - At least the newest 64 that have ended are remembered, and of all that ended within a minute the
    ///   newest 512.
    /// - A provider without background processes returns [`crate::Error::NotSupported`], from this and
    ///   the methods about them.
    async fn start_process(&self, command: Command, background: Background) -> Result<ProcessInfo> {
        let _ = (command, background);
        Err(no_processes())
    }

    /// Returns the background processes of the box, by number.
    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        Err(no_processes())
    }

    /// Returns the background processes of the box that have a process id, or had it, by number.
    async fn processes_of_pid(&self, pid: u32) -> Result<Vec<ProcessInfo>> {
        let mut processes = self.processes().await?;
        processes.retain(|process| process.pid.or(process.ended_pid) == Some(pid));
        Ok(processes)
    }

    /// Reads the output of a background process, beside other readers.
    ///
    /// - Output has a position, the number of bytes written before, in both streams together. What
    ///   begins at the same position is the same for all readers.
    /// - A reader that is too slow misses output, and a [`ProcessEvent::Position`] says so; unless the
    ///   process is lossless, then it waits for the fastest reader, and for the first one, or paced, then
    ///   it waits for each reader while it has any, and for the first one at most 30 seconds.
    /// - A process that does not exist is [`crate::Error::NotFound`], a position that it has not
    ///   reached [`crate::Error::Invalid`].
    ///
    /// [`ProcessEvent::Position`]: crate::ProcessEvent::Position
    async fn attach_process(&self, process: u64, attach: Attach) -> Result<ProcessEvents> {
        let _ = (process, attach);
        Err(no_processes())
    }

    /// Writes to the stdin of a background process, and ends it with `end`. Returns when the process
    /// has taken all of it.
    ///
    /// - A stdin that is not open, or is not read for long, is [`crate::Error::Conflict`].
    async fn process_input(&self, process: u64, content: ByteStream, end: bool) -> Result<()> {
        let _ = (process, content, end);
        Err(no_processes())
    }

    /// Carries out an action on a background process. It has no effect after the end.
    ///
    /// - A new size for a process without a terminal is [`crate::Error::Invalid`].
    async fn control_process(&self, process: u64, action: ProcessAction) -> Result<()> {
        let _ = (process, action);
        Err(no_processes())
    }

    /// Kills a background process with all its descendants, and forgets it.
    async fn remove_process(&self, process: u64) -> Result<()> {
        let _ = process;
        Err(no_processes())
    }

    /// Reads at most `length` bytes of a regular file, starting at byte `offset`. A `length` of
    /// `None` reads to the end; an `offset` beyond the end reads nothing.
    ///
    /// - Links are followed inside the box.
    /// - Anything but a regular file is [`crate::Error::Invalid`], without waiting.
    async fn read_file(&self, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent>;

    /// Writes a file, completely or not at all. `mode` is at most 0o7777.
    ///
    /// - Missing parent directories are made with mode 0755.
    /// - A `mode` of `None` keeps the mode of an existing file; a new file gets 0644.
    /// - A failure of `content` leaves the previous file, and no other file.
    async fn write_file(&self, path: &str, mode: Option<u32>, content: ByteStream) -> Result<()>;

    /// Writes into a file itself, as programs do, and gives it to the user that the guest acts as.
    ///
    /// - Watchers of a new file see it come, its owner change, and its content being written.
    /// - Missing parent directories are made with mode 0755, a new file with 0644.
    /// - What was written before a fault stays.
    /// - A provider that cannot write in place replaces the file, as [`Guest::write_file`].
    /// - The file has the extended attributes `xattrs` instead of those with their prefix; `None` leaves them. A
    ///   provider that keeps none returns [`crate::Error::NotSupported`] if there are some.
    async fn overwrite_file(&self, path: &str, xattrs: Option<NewXattrs>, content: ByteStream) -> Result<()> {
        if xattrs.is_some_and(|xattrs| !xattrs.values.is_empty()) {
            return Err(Error::NotSupported(
                "this provider keeps no extended attributes; leave the metadata out".to_owned(),
            ));
        }
        self.write_file(path, None, content).await
    }

    /// Returns the extended attributes of files whose names begin with `prefix`, in the order of `paths`.
    ///
    /// - Links are not followed. A file that is not there, or may not be read, has none.
    /// - At most [`XATTR_PATHS_MAX`] paths; more are [`crate::Error::Invalid`].
    /// - A provider that keeps none returns empty ones.
    async fn xattrs(&self, paths: &[String], prefix: &str) -> Result<Vec<Xattrs>> {
        let _ = prefix;
        Ok(vec![Xattrs::new(); paths.len()])
    }

    /// Makes a directory with mode 0755, and its parents where they are missing.
    ///
    /// - A directory that exists is [`crate::Error::Conflict`], another file in the way
    ///   [`crate::Error::Invalid`].
    /// - A provider that cannot make one alone returns [`crate::Error::NotSupported`].
    async fn make_dir(&self, path: &str) -> Result<()> {
        let _ = path;
        Err(Error::NotSupported("this provider cannot make an empty directory; write a file into it".to_owned()))
    }

    /// Returns the metadata of what a path leads to through all links, with the path without links.
    ///
    /// - A link that leads nowhere is [`crate::Error::NotFound`].
    /// - A provider that cannot follow links for a caller returns [`crate::Error::NotSupported`].
    async fn resolve(&self, path: &str) -> Result<FileInfo> {
        let _ = path;
        Err(Error::NotSupported("this provider cannot tell where a link leads".to_owned()))
    }

    /// Returns an account of the box, as its `/etc/passwd` has it now; that of the box's own user for
    /// `None`.
    ///
    /// - A user that the box does not have is [`crate::Error::Invalid`].
    /// - A provider that cannot look returns [`crate::Error::NotSupported`].
    async fn account(&self, user: Option<&str>) -> Result<Account> {
        let _ = user;
        Err(Error::NotSupported("this provider does not know the users of a sandbox".to_owned()))
    }

    /// Returns the same box for work on files as another user; commands name theirs themselves.
    ///
    /// - A user that the box does not have is [`crate::Error::Invalid`] of each method, and one that a box
    ///   with a single user cannot act as [`crate::Error::NotSupported`].
    /// - A provider that cannot act as another user returns [`crate::Error::NotSupported`].
    fn acting_as(&self, user: &str) -> Result<Arc<dyn Guest>> {
        let _ = user;
        Err(Error::NotSupported("this provider works on files as the sandbox's own user alone".to_owned()))
    }

    /// Removes a file, a directory or a link.
    ///
    /// - A directory that is not empty is [`crate::Error::Invalid`] unless `recursive`.
    /// - Links are not followed: the link itself is removed.
    async fn delete(&self, path: &str, recursive: bool) -> Result<()>;

    /// Lists the entries of a directory, sorted by name, without following links.
    async fn list(&self, path: &str) -> Result<Vec<FileInfo>>;

    /// Returns the metadata of one file or directory, or of a link itself.
    async fn stat(&self, path: &str) -> Result<FileInfo>;

    /// Moves a file or directory from `old` to `new`. An existing file at `new` is replaced.
    async fn rename(&self, old: &str, new: &str) -> Result<()>;

    /// Sets permission bits (at most 0o7777). Links are followed.
    async fn chmod(&self, path: &str, mode: u32) -> Result<()>;

    /// Returns the paths that match the absolute `pattern`, sorted. It may have `*`, `?`, `[...]`,
    /// `{a,b}` and `**`.
    ///
    /// - No match is an empty list.
    /// - More than 10,000 matches are [`crate::Error::Invalid`].
    async fn glob(&self, pattern: &str) -> Result<Vec<String>>;

    /// Searches in the content of the regular files of a scope, line by line, by path and number.
    ///
    /// - A pattern or a glob that cannot be used is [`crate::Error::Invalid`].
    /// - Links are not followed, but the path of the scope may be one. Devices and FIFOs are passed
    ///   over, and so are files with a zero byte, which are counted as binary.
    /// - Where a bound ends the search, the account names it.
    /// - Dropping the call ends the search.
    /// - A provider that cannot search returns [`crate::Error::NotSupported`].
    async fn search(&self, request: &Search) -> Result<SearchResult>;

    /// Replaces in the content of the regular files of a scope. A file changes completely or not at
    /// all, and keeps its mode and owner.
    ///
    /// - Files are passed over as by [`Guest::search`], and those that are too large to change.
    /// - A dry run changes nothing.
    /// - A provider that cannot replace returns [`crate::Error::NotSupported`].
    async fn replace(&self, request: &Replace) -> Result<ReplaceResult>;

    /// Packs a directory as tar, with names below it, or a regular file under its own name. Links are
    /// not followed, but `path` may be one.
    ///
    /// - Modes, times, links and files with several names are kept. What is neither a file, a
    ///   directory nor a link is left out, and so is what the box's user may not read.
    /// - A fault in the middle breaks the stream off.
    /// - A provider without archives returns [`crate::Error::NotSupported`].
    async fn archive(&self, path: &str) -> Result<ByteStream>;

    /// Packs all files of the box as tar, to make an image of them.
    ///
    /// - It has what root of the box can read, whatever the image's user is; what cannot be read breaks
    ///   the stream off. Otherwise as [`Guest::archive`].
    /// - What the box gets from its runtime is left out: `/proc`, `/sys`, `/dev` and the agent.
    /// - A provider without it returns [`crate::Error::NotSupported`].
    async fn whole_archive(&self) -> Result<ByteStream> {
        Err(Error::NotSupported("its provider cannot pack a whole sandbox".to_owned()))
    }

    /// Unpacks a tar below the directory `path`, which is made if it is missing. Files and links in the
    /// way are replaced; owners are not taken over.
    ///
    /// - No member leaves the directory, by its name or through a link: such an archive is
    ///   [`crate::Error::Invalid`], as are one that is cut or malformed, devices, FIFOs, and a file in
    ///   the place of a directory or the reverse. What was unpacked before stays.
    /// - A provider without archives returns [`crate::Error::NotSupported`].
    async fn unpack(&self, path: &str, archive: ByteStream) -> Result<Unpacked>;

    /// Describes a directory and all that is below it, as NDJSON of [`guest_protocol::ManifestRow`]; with
    /// `checksum`, with the digests of files.
    ///
    /// - Paths are percent-encoded, each directory comes before its entries, and a last line ends it.
    /// - What cannot be read is counted in the last line.
    /// - A provider that cannot describe returns [`crate::Error::NotSupported`].
    async fn manifest(&self, path: &str, checksum: bool) -> Result<ByteStream>;

    /// Packs chosen files below a directory as tar, in the order of their paths.
    ///
    /// - What is not there or cannot be read is left out.
    /// - A path that could lead out of the directory is [`crate::Error::Invalid`].
    /// - A provider without archives returns [`crate::Error::NotSupported`].
    async fn pack(&self, request: &Pack) -> Result<ByteStream>;

    /// Removes files below a directory, then sets modes and times.
    ///
    /// - A directory is removed only if it is empty; what is not there is no failure.
    /// - No path leads through a link. One that could lead out of the directory is
    ///   [`crate::Error::Invalid`], and nothing is done.
    /// - A path that fails for another reason is in the account, and the others are done.
    /// - A provider that cannot do it returns [`crate::Error::NotSupported`].
    async fn amend(&self, request: &Amend) -> Result<Amended>;

    /// Watches a file, or the entries of a directory; if `recursive`, all that is below it.
    ///
    /// - A directory that comes to one that is watched recursively is watched too, and what is in it by
    ///   then is reported as created, maybe twice.
    /// - A move is a removal and a creation.
    /// - Where changes are missing, the stream says so.
    /// - More than 8,192 directories are [`crate::Error::Invalid`], more than 8 watches at once
    ///   [`crate::Error::Exhausted`].
    /// - A provider that cannot watch returns [`crate::Error::NotSupported`].
    async fn watch(&self, path: &str, recursive: bool) -> Result<FileChanges>;

    /// Begins a watch whose changes the box keeps until they are taken. Returns its number.
    ///
    /// - The rules of [`Guest::watch`]; both count for its bound.
    /// - A provider that cannot watch returns [`crate::Error::NotSupported`], from this and the methods
    ///   about watchers.
    async fn add_watcher(&self, path: &str, recursive: bool) -> Result<u64> {
        let _ = (path, recursive);
        Err(no_watchers())
    }

    /// Takes the changes of a watcher: all that have happened before the call and were not taken, at once.
    ///
    /// - Beyond 4,096 changes or 1 MiB of paths the rest is missing, and the last row says so.
    /// - A watcher that does not exist is [`crate::Error::NotFound`].
    async fn watcher_changes(&self, watcher: u64) -> Result<Vec<WatchRow>> {
        let _ = watcher;
        Err(no_watchers())
    }

    /// Ends a watcher.
    ///
    /// - A watcher that does not exist is [`crate::Error::NotFound`].
    async fn remove_watcher(&self, watcher: u64) -> Result<()> {
        let _ = watcher;
        Err(no_watchers())
    }

    /// Returns the newest `lines` lines of the console, oldest first and at most 10,000: the output
    /// of the box's first process and of its background processes.
    async fn console(&self, lines: usize) -> Result<Vec<String>>;

    /// Returns the TCP ports that processes of the box listen on, sorted by port and address, at most
    /// 10,000.
    ///
    /// - A box that shares the host's network shows the ports of its own processes only.
    async fn ports(&self) -> Result<Vec<ListeningPort>>;

    /// Watches the ports that [`Guest::ports`] lists, with a look every `interval` or less often.
    ///
    /// - The box keeps what it has reported: a later call, also one of another process, begins with
    ///   what is different from then. The first one begins with all ports that listen.
    /// - There is one receiver: a later call ends the stream of the earlier one.
    /// - A port that begins and ceases to listen between two looks is not reported, and neither is one
    ///   that another socket takes over between them. Of a great many changes those that are undone
    ///   before their turn are left out.
    /// - A provider that cannot watch returns [`crate::Error::NotSupported`].
    async fn watch_ports(&self, interval: Duration) -> Result<PortChanges>;

    /// Connects to a TCP port that a process of the box listens on: on its loopback, else on another
    /// of its addresses. `input` goes to the process, the result is what it sends, both byte for
    /// byte and at the speed of the slower side.
    ///
    /// - A port that nothing in the box listens on is [`crate::Error::NotFound`].
    /// - The end of `input` ends only that direction. An error of `input` resets the connection.
    /// - An empty piece of the result, which comes once, says that the process sends no more; the
    ///   result ends once both directions have ended.
    /// - Dropping the result before its end resets the connection.
    /// - No port of the host, and none of the agent, can be reached.
    async fn connect(&self, port: u16, input: ByteStream) -> Result<ByteStream>;

    /// Listens on a TCP port of the loopback of the box, until the stream is dropped.
    ///
    /// - A port that something in the box listens on is [`crate::Error::Conflict`], one that the box
    ///   may not listen on [`crate::Error::Invalid`].
    /// - More than 16 ports at once are [`crate::Error::Exhausted`]. Of 128 connections at once, to all
    ///   of them, further ones wait.
    /// - The port is not among those that [`Guest::ports`] lists, and [`Guest::connect`] does not
    ///   reach it.
    /// - Connections that were accepted go on when the stream is dropped.
    /// - A provider whose boxes share the network of others returns [`crate::Error::NotSupported`].
    async fn listen(&self, port: u16) -> Result<PortConnections>;

    /// Receives the connections that processes of the box ask for at its proxy: the agent's, on the
    /// box's loopback, which speaks HTTP, `CONNECT` and SOCKS5 and is named by `HTTP_PROXY` and
    /// the variables beside it.
    ///
    /// - Before the first call the proxy refuses every connection: the box has no network.
    /// - There is one receiver: a later call ends the stream of the earlier one. Connections that
    ///   were accepted go on; those that have no answer yet are asked for again.
    /// - While there is no receiver, connections wait shortly for the next one, and are then
    ///   refused.
    async fn egress(&self) -> Result<EgressRequests>;

    /// Has programs that start from now on trust the authority with this certificate, PEM, besides
    /// those of their system, in the place of an earlier one.
    ///
    /// - `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, `GIT_SSL_CAINFO`, `PIP_CERT`,
    ///   `CARGO_HTTP_CAINFO` and `AWS_CA_BUNDLE` name a file with all of them, `NODE_EXTRA_CA_CERTS` and
    ///   `DENO_CERT` one with this one. A variable that the request or the image sets stays as it is.
    /// - Where the box has a file of the system's authorities of its own, it is added there too.
    async fn trust(&self, certificate: &str) -> Result<()>;

    /// Sets the box's deadline to `after` from now. The box ends by itself then, even if no
    /// server is running.
    async fn set_deadline(&self, after: Duration) -> Result<()>;
}

fn no_watchers() -> Error {
    Error::NotSupported("this provider cannot watch files".to_owned())
}

fn no_processes() -> Error {
    Error::NotSupported("this provider has no background processes; run the command in the foreground".to_owned())
}
