//! The server's side of the protocol between server and agent: a [`Guest`] on top of one byte
//! stream to the agent in a box.
//!
//! An agent runs beside untrusted code, so its messages are treated as hostile. Every size and
//! every wait has a bound here, and an answer that makes no sense fails only the request that it
//! answers.

mod array;
mod connection;
mod egress;
mod exec;
mod frames;
mod lines;
mod link;
mod listen;
mod numbers;
mod ports;
mod process;
mod request;
mod search;
mod socket;
mod transfer;
mod tree;
mod watch;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol as wire_types;
use guest_protocol::{
    ANSWER_BYTES_MAX, CONSOLE_BYTES_MAX, CONSOLE_LINES_MAX, GLOB_RESULTS_MAX, Hello, LIST_ENTRIES_MAX, NewXattrs,
    PORTS_MAX, VERSION, XATTRS_BYTES_MAX, Xattrs,
};
use http::Method;
use tokio::io::{AsyncRead, AsyncWrite};

use self::array::Bounds;
pub(crate) use self::connection::BROKEN;
use self::connection::Connection;
pub(crate) use self::exec::check_command;
pub(crate) use self::ports::check_port;
pub(crate) use self::process::{INPUT_STALL_MAX, input_stalled};
use self::request::{LONG_WAIT, SHORT_WAIT};
pub(crate) use self::socket::{connect_unix, nothing_listens, unreached};
pub(crate) use self::wire::{check_mode, check_path};
use crate::{
    Account, Amend, Amended, Attach, Background, ByteStream, Command, EgressRequests, Error, FileChanges, FileContent,
    FileInfo, Guest, Interactive, ListeningPort, OutputStream, Pack, PortChanges, PortConnections, ProcessAction,
    ProcessEvents, ProcessInfo, Replace, ReplaceResult, Result, Search, SearchResult, Unpacked, WatchRow,
};

/// Largest JSON of a console answer: at most six bytes for each byte of a line, and three between
/// two lines.
const CONSOLE_ANSWER_BYTES_MAX: usize = 6 * CONSOLE_BYTES_MAX + 3 * CONSOLE_LINES_MAX + 2;

/// The inside of a box, reached through its agent.
///
/// The connection ends when the guest and all its streams have been dropped.
pub struct AgentGuest {
    connection: Arc<Connection>,
}

impl fmt::Debug for AgentGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentGuest").field("closed", &self.is_closed()).finish()
    }
}

impl AgentGuest {
    /// Connects to the agent at the other end of `io`.
    ///
    /// # Errors
    /// [`Error::Gone`] if the other end closes, [`Error::Unavailable`] if it speaks another
    /// version of the protocol, [`Error::Failed`] if it sends nothing for 30 seconds or nothing
    /// that makes sense.
    pub async fn connect(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<AgentGuest> {
        const ACTION: &str = "reach the agent";
        let hello = async {
            let connection = Arc::new(Connection::open(io).await?);
            let hello: Hello = connection.ask(ACTION, Method::GET, "/hello", &(), SHORT_WAIT).await?;
            if hello.protocol != VERSION {
                return Err(request::other_version(&hello.protocol.to_string()));
            }
            Ok(AgentGuest { connection })
        };
        tokio::time::timeout(SHORT_WAIT, hello)
            .await
            .unwrap_or_else(|_| Err(Error::failed(ACTION, "the agent does not answer")))
    }

    /// Makes the box of a machine that goes on from files differ from the one that was written to them.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the box is no machine, [`Error::Failed`] if its kernel refuses.
    pub(crate) async fn renew(&self, restored: &wire_types::Restored) -> Result<()> {
        self.connection.order("give a restored machine its own identity", "/restored", restored, SHORT_WAIT).await
    }

    /// Stops all processes of a box that is a machine, so that none of them runs in a machine that is made of
    /// it before [`AgentGuest::renew`]. They go on by themselves after ten minutes of the machine's time.
    ///
    /// # Errors
    /// [`Error::Conflict`] if they do not stop, [`Error::NotSupported`] if the box is no machine.
    pub(crate) async fn freeze(&self) -> Result<()> {
        self.connection.order("stop the processes", "/freeze", &(), SHORT_WAIT).await
    }

    /// Has all processes go on that [`AgentGuest::freeze`] has stopped.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the box is no machine.
    pub(crate) async fn thaw(&self) -> Result<()> {
        self.connection.order("resume the processes", "/thaw", &(), SHORT_WAIT).await
    }

    /// Ends the connection, and all requests on it.
    pub(crate) fn hang_up(&self) {
        self.connection.end();
    }

    /// Returns whether the connection has ended. A new one is needed then.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }
}

#[async_trait]
impl Guest for AgentGuest {
    async fn exec(&self, command: Command) -> Result<OutputStream> {
        exec::exec(&self.connection, command).await
    }

    async fn exec_interactive(&self, command: Command) -> Result<Interactive> {
        exec::exec_interactive(&self.connection, command).await
    }

    async fn start_process(&self, command: Command, background: Background) -> Result<ProcessInfo> {
        process::start(&self.connection, command, background).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        process::list(&self.connection).await
    }

    async fn processes_of_pid(&self, pid: u32) -> Result<Vec<ProcessInfo>> {
        process::of_pid(&self.connection, pid).await
    }

    async fn attach_process(&self, process: u64, attach: Attach) -> Result<ProcessEvents> {
        process::attach(&self.connection, process, attach).await
    }

    async fn process_input(&self, process: u64, content: ByteStream, end: bool) -> Result<()> {
        process::input(&self.connection, process, content, end).await
    }

    async fn control_process(&self, process: u64, action: ProcessAction) -> Result<()> {
        process::control(&self.connection, process, action).await
    }

    async fn remove_process(&self, process: u64) -> Result<()> {
        process::remove(&self.connection, process).await
    }

    async fn read_file(&self, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent> {
        check_path(path)?;
        transfer::read(&self.connection, wire_types::ReadFile { path: path.to_owned(), offset, length }).await
    }

    async fn write_file(&self, path: &str, mode: Option<u32>, content: ByteStream) -> Result<()> {
        check_path(path)?;
        mode.map_or(Ok(()), check_mode)?;
        transfer::write(
            &self.connection,
            &wire_types::WriteFile { path: path.to_owned(), mode, in_place: false, xattrs: None },
            content,
        )
        .await
    }

    async fn overwrite_file(&self, path: &str, xattrs: Option<NewXattrs>, content: ByteStream) -> Result<()> {
        check_path(path)?;
        let request = wire_types::WriteFile { path: path.to_owned(), mode: None, in_place: true, xattrs };
        transfer::write(&self.connection, &request, content).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        check_path(path)?;
        let request = wire_types::PathOnly { path: path.to_owned() };
        self.connection.order("make a directory", "/files/make-dir", &request, SHORT_WAIT).await
    }

    async fn xattrs(&self, paths: &[String], prefix: &str) -> Result<Vec<Xattrs>> {
        const ACTION: &str = "read the attributes of files";
        paths.iter().try_for_each(|path| check_path(path))?;
        let request = wire_types::XattrsOf { paths: paths.to_vec(), prefix: prefix.to_owned() };
        // Text of JSON may be six times as long as what it stands for.
        let bounds = Bounds { text: paths.len() * 7 * XATTRS_BYTES_MAX, count: paths.len() };
        let mut found = Vec::with_capacity(paths.len());
        let gathered = self.connection.gather(ACTION, "/files/xattrs", &request, SHORT_WAIT, bounds, |one: Xattrs| {
            let held = one.iter().map(|(name, value)| name.len() + value.len()).sum();
            if held > XATTRS_BYTES_MAX {
                return Err(Error::failed(ACTION, "the agent returned too many"));
            }
            found.push(one);
            Ok(held)
        });
        gathered.await?;
        if found.len() == paths.len() {
            Ok(found)
        } else {
            Err(Error::failed(ACTION, "the agent returned those of another number of files"))
        }
    }

    async fn resolve(&self, path: &str) -> Result<FileInfo> {
        const ACTION: &str = "follow a link";
        check_path(path)?;
        let request = wire_types::PathOnly { path: path.to_owned() };
        let answer = self.connection.ask(ACTION, Method::POST, "/files/resolve", &request, SHORT_WAIT).await?;
        wire::file_info(ACTION, answer)
    }

    async fn account(&self, user: Option<&str>) -> Result<Account> {
        const ACTION: &str = "find a user";
        let request = wire_types::AccountOf { user: user.map(str::to_owned) };
        let answer = self.connection.ask(ACTION, Method::POST, "/account", &request, SHORT_WAIT).await?;
        wire::account(ACTION, answer)
    }

    fn acting_as(&self, user: &str) -> Result<Arc<dyn Guest>> {
        Ok(Arc::new(AgentGuest { connection: Arc::new(self.connection.acting_as(user)?) }))
    }

    async fn delete(&self, path: &str, recursive: bool) -> Result<()> {
        check_path(path)?;
        let request = wire_types::Delete { path: path.to_owned(), recursive };
        self.connection.order("delete a file", "/files/delete", &request, LONG_WAIT).await
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        const ACTION: &str = "list a directory";
        check_path(path)?;
        let request = wire_types::PathOnly { path: path.to_owned() };
        let bounds = Bounds { text: ANSWER_BYTES_MAX, count: LIST_ENTRIES_MAX };
        let mut entries = Vec::new();
        let gathered = self.connection.gather(ACTION, "/files/list", &request, LONG_WAIT, bounds, |info| {
            let info: FileInfo = wire::file_info(ACTION, info)?;
            let texts = info.name.len() + info.path.len() + info.target.as_ref().map_or(0, String::len);
            entries.push(info);
            Ok(texts + size_of::<FileInfo>())
        });
        gathered.await?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        const ACTION: &str = "read the metadata of a file";
        check_path(path)?;
        let request = wire_types::PathOnly { path: path.to_owned() };
        let answer = self.connection.ask(ACTION, Method::POST, "/files/stat", &request, SHORT_WAIT).await?;
        wire::file_info(ACTION, answer)
    }

    async fn rename(&self, old: &str, new: &str) -> Result<()> {
        check_path(old)?;
        check_path(new)?;
        let request = wire_types::Rename { old_path: old.to_owned(), new_path: new.to_owned() };
        self.connection.order("move a file", "/files/move", &request, SHORT_WAIT).await
    }

    async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        check_path(path)?;
        check_mode(mode)?;
        let request = wire_types::Chmod { path: path.to_owned(), mode };
        self.connection.order("change the mode of a file", "/files/chmod", &request, SHORT_WAIT).await
    }

    async fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        const ACTION: &str = "search for files";
        check_path(pattern)?;
        let request = wire_types::Glob { pattern: pattern.to_owned() };
        let bounds = Bounds { text: ANSWER_BYTES_MAX, count: GLOB_RESULTS_MAX };
        let mut paths = Vec::new();
        let gathered = self.connection.gather(ACTION, "/files/glob", &request, LONG_WAIT, bounds, |path: String| {
            check_path(&path).map_err(|_| Error::failed(ACTION, "the agent returned an invalid path"))?;
            let held = path.len() + size_of::<String>();
            paths.push(path);
            Ok(held)
        });
        gathered.await?;
        paths.sort();
        Ok(paths)
    }

    async fn search(&self, request: &Search) -> Result<SearchResult> {
        check_path(&request.scope.path)?;
        search::search(&self.connection, request).await
    }

    async fn replace(&self, request: &Replace) -> Result<ReplaceResult> {
        check_path(&request.scope.path)?;
        search::replace(&self.connection, request).await
    }

    async fn archive(&self, path: &str) -> Result<ByteStream> {
        check_path(path)?;
        transfer::archive(&self.connection, &wire_types::Archive { path: path.to_owned(), is_whole: false }).await
    }

    async fn whole_archive(&self) -> Result<ByteStream> {
        transfer::archive(&self.connection, &wire_types::Archive { path: "/".to_owned(), is_whole: true }).await
    }

    async fn unpack(&self, path: &str, archive: ByteStream) -> Result<Unpacked> {
        check_path(path)?;
        transfer::unpack(&self.connection, &wire_types::PathOnly { path: path.to_owned() }, archive).await
    }

    async fn manifest(&self, path: &str, checksum: bool) -> Result<ByteStream> {
        check_path(path)?;
        tree::manifest(&self.connection, &wire_types::Manifest { path: path.to_owned(), checksum }).await
    }

    async fn pack(&self, request: &Pack) -> Result<ByteStream> {
        check_path(&request.path)?;
        tree::pack(&self.connection, request).await
    }

    async fn amend(&self, request: &Amend) -> Result<Amended> {
        check_path(&request.path)?;
        tree::amend(&self.connection, request).await
    }

    async fn watch(&self, path: &str, recursive: bool) -> Result<FileChanges> {
        check_path(path)?;
        watch::watch(&self.connection, &wire_types::WatchFiles { path: path.to_owned(), recursive }).await
    }

    async fn add_watcher(&self, path: &str, recursive: bool) -> Result<u64> {
        check_path(path)?;
        watch::add(&self.connection, &wire_types::WatchFiles { path: path.to_owned(), recursive }).await
    }

    async fn watcher_changes(&self, watcher: u64) -> Result<Vec<WatchRow>> {
        watch::take(&self.connection, wire_types::Watcher { watcher }).await
    }

    async fn remove_watcher(&self, watcher: u64) -> Result<()> {
        watch::remove(&self.connection, wire_types::Watcher { watcher }).await
    }

    async fn console(&self, lines: usize) -> Result<Vec<String>> {
        const ACTION: &str = "read the console";
        let lines = lines.min(CONSOLE_LINES_MAX);
        let request = wire_types::Console { lines };
        let bounds = Bounds { text: CONSOLE_ANSWER_BYTES_MAX, count: CONSOLE_LINES_MAX };
        let mut newest = VecDeque::new();
        let gathered = self.connection.gather(ACTION, "/console", &request, SHORT_WAIT, bounds, |line: String| {
            let held = line.len() + size_of::<String>();
            newest.push_back(line);
            if newest.len() > lines {
                newest.pop_front();
            }
            Ok(held)
        });
        gathered.await?;
        Ok(newest.into())
    }

    async fn ports(&self) -> Result<Vec<ListeningPort>> {
        const ACTION: &str = "list the ports of a box";
        let bounds = Bounds { text: ANSWER_BYTES_MAX, count: PORTS_MAX };
        let mut ports = Vec::new();
        let gathered = self.connection.gather(ACTION, "/ports", &(), SHORT_WAIT, bounds, |port| {
            let port = ports::listening(port);
            let held = size_of::<ListeningPort>() + port.process.as_ref().map_or(0, String::len);
            ports.push(port);
            Ok(held)
        });
        gathered.await?;
        ports.sort_by_key(|port| (port.port, port.address));
        Ok(ports)
    }

    async fn watch_ports(&self, interval: Duration) -> Result<PortChanges> {
        ports::watch(&self.connection, interval).await
    }

    async fn connect(&self, port: u16, input: ByteStream) -> Result<ByteStream> {
        ports::connect(&self.connection, port, input).await
    }

    async fn listen(&self, port: u16) -> Result<PortConnections> {
        listen::listen(&self.connection, port).await
    }

    async fn egress(&self) -> Result<EgressRequests> {
        egress::receive(&self.connection).await
    }

    async fn trust(&self, certificate: &str) -> Result<()> {
        let request = wire_types::Trust { certificate: certificate.to_owned() };
        self.connection.order("add a certificate authority to a box", "/trust", &request, SHORT_WAIT).await
    }

    async fn set_deadline(&self, after: Duration) -> Result<()> {
        let request = wire_types::Deadline { in_ms: wire::milliseconds(after) };
        self.connection.order("set the deadline of a box", "/deadline", &request, SHORT_WAIT).await
    }
}
