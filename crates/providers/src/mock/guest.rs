//! The inside of a box in memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};

use super::boxed::Boxed;
use super::fs::FileSystem;
use super::processes;
use super::shell::run;
use crate::agent::{check_mode, check_path, check_port};
use crate::{
    Account, Amend, Amended, Attach, Background, ByteStream, Command, EgressRequests, Error, FileChanges, FileContent,
    FileInfo, Guest, Interactive, ListeningPort, OutputStream, Pack, PortChanges, PortConnections, ProcessAction,
    ProcessEvents, ProcessInfo, Replace, ReplaceResult, Result, Search, SearchResult, Unpacked,
};

/// Size of the pieces in which a file is read, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// Users of every box: name, number and home.
const ACCOUNTS: [(&str, u32, &str); 2] = [("root", 0, "/root"), ("user", 1000, "/home/user")];

fn no_user(name: &str) -> Error {
    Error::Invalid(format!("the box has no user {name:?}"))
}

pub(super) struct MockGuest {
    inside: Arc<Boxed>,
}

impl fmt::Debug for MockGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockGuest").finish_non_exhaustive()
    }
}

impl MockGuest {
    pub(super) fn new(inside: Arc<Boxed>) -> MockGuest {
        MockGuest { inside }
    }

    /// Runs a future, and fails with [`Error::Gone`] if the box ends before it.
    async fn alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.inside.dead().run_until_cancelled(work).await.unwrap_or(Err(Error::Gone))
    }

    /// Returns a stream of nothing, which ends with the box.
    async fn silent<T: Send + 'static>(&self) -> Result<BoxStream<'static, T>> {
        let dead = self.inside.dead().clone();
        self.alive(async { Ok(()) }).await?;
        Ok(stream::once(async move { dead.cancelled().await }).filter_map(|()| async { None }).boxed())
    }

    /// Starts a command, with the delay and the failures that the labels request.
    async fn command<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        self.alive(async {
            if let Some(delay) = self.inside.faults().exec_delay {
                tokio::time::sleep(delay).await;
            }
            if self.inside.is_exec_refused() {
                return Err(Error::failed("run a command", "requested by the label mock.exec_fail"));
            }
            start()
        })
        .await
    }

    /// Performs one operation on the files, with the delay that the labels request.
    async fn files<T>(&self, work: impl FnOnce(&mut FileSystem) -> Result<T>) -> Result<T> {
        self.alive(async {
            if let Some(delay) = self.inside.faults().file_delay {
                tokio::time::sleep(delay).await;
            }
            work(&mut self.inside.fs())
        })
        .await
    }
}

#[async_trait]
impl Guest for MockGuest {
    async fn exec(&self, command: Command) -> Result<OutputStream> {
        Ok(self.exec_interactive(command).await?.output)
    }

    async fn exec_interactive(&self, command: Command) -> Result<Interactive> {
        self.command(|| run::start(&self.inside, command).map(|running| running.interactive)).await
    }

    async fn start_process(&self, command: Command, background: Background) -> Result<ProcessInfo> {
        self.command(|| Ok(())).await?;
        self.alive(processes::start(&self.inside, command, background)).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.alive(async { Ok(self.inside.processes().list()) }).await
    }

    async fn attach_process(&self, process: u64, attach: Attach) -> Result<ProcessEvents> {
        self.alive(async { self.inside.processes().attach(process, attach) }).await
    }

    async fn process_input(&self, process: u64, content: ByteStream, end: bool) -> Result<()> {
        self.alive(self.inside.processes().input(process, content, end)).await
    }

    async fn control_process(&self, process: u64, action: ProcessAction) -> Result<()> {
        self.alive(self.inside.processes().control(process, action)).await
    }

    async fn remove_process(&self, process: u64) -> Result<()> {
        self.alive(self.inside.processes().remove(process)).await
    }

    async fn read_file(&self, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent> {
        let (info, content) = self.files(|fs| fs.read(path)).await?;
        let size = content.len() as u64;
        let begin = offset.min(size);
        let end = length.map_or(size, |length| begin.saturating_add(length).min(size));
        let bounded = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let content = content.slice(bounded(begin)..bounded(end));
        let dead = self.inside.dead().clone();
        let bytes = stream::unfold(Some(content), move |left| {
            let is_gone = dead.is_cancelled();
            async move {
                let mut left = left.filter(|left| !left.is_empty())?;
                if is_gone {
                    return Some((Err(Error::Gone), None));
                }
                let piece = left.split_to(left.len().min(PIECE_BYTES));
                Some((Ok(piece), Some(left)))
            }
        });
        Ok(FileContent { info, bytes: bytes.boxed() })
    }

    async fn write_file(&self, path: &str, mode: Option<u32>, mut content: ByteStream) -> Result<()> {
        check_path(path)?;
        mode.map_or(Ok(()), check_mode)?;
        let received = self.alive(async {
            let mut received = BytesMut::new();
            while let Some(piece) = content.next().await {
                let piece: Bytes = piece?;
                if (received.len() + piece.len()) as u64 > self.inside.fs().free() {
                    return Err(Error::NoSpace);
                }
                received.extend_from_slice(&piece);
            }
            Ok(received)
        });
        let received = received.await?;
        self.files(|fs| fs.write(path, mode, &received)).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        check_path(path)?;
        self.files(|fs| fs.make_dir(path)).await
    }

    async fn resolve(&self, path: &str) -> Result<FileInfo> {
        self.files(|fs| fs.follow(path)).await
    }

    async fn account(&self, user: Option<&str>) -> Result<Account> {
        let found = ACCOUNTS.iter().find(|(name, ..)| *name == user.unwrap_or("root"));
        self.alive(async {
            let (name, id, home) = found.ok_or_else(|| no_user(user.unwrap_or_default()))?;
            Ok(Account { name: (*name).to_owned(), uid: *id, gid: *id, home: (*home).to_owned(), is_only: false })
        })
        .await
    }

    fn acting_as(&self, user: &str) -> Result<Arc<dyn Guest>> {
        // Files of a mock box have no owners.
        match ACCOUNTS.iter().any(|(name, ..)| *name == user) {
            true => Ok(Arc::new(MockGuest { inside: Arc::clone(&self.inside) })),
            false => Err(no_user(user)),
        }
    }

    async fn delete(&self, path: &str, recursive: bool) -> Result<()> {
        self.files(|fs| fs.delete(path, recursive)).await
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        self.files(|fs| fs.list(path)).await
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        self.files(|fs| fs.stat(path)).await
    }

    async fn rename(&self, old: &str, new: &str) -> Result<()> {
        self.files(|fs| fs.rename(old, new)).await
    }

    async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        check_mode(mode)?;
        self.files(|fs| fs.chmod(path, mode)).await
    }

    async fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        self.files(|fs| fs.glob(pattern)).await
    }

    async fn search(&self, _: &Search) -> Result<SearchResult> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` cannot search in files".to_owned())) }).await
    }

    async fn replace(&self, _: &Replace) -> Result<ReplaceResult> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` cannot replace in files".to_owned())) }).await
    }

    async fn archive(&self, _: &str) -> Result<ByteStream> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` has no archives".to_owned())) }).await
    }

    async fn unpack(&self, _: &str, _: ByteStream) -> Result<Unpacked> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` has no archives".to_owned())) }).await
    }

    async fn manifest(&self, _: &str, _: bool) -> Result<ByteStream> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` has no manifests".to_owned())) }).await
    }

    async fn pack(&self, _: &Pack) -> Result<ByteStream> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` has no archives".to_owned())) }).await
    }

    async fn amend(&self, _: &Amend) -> Result<Amended> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` changes one file at a time".to_owned())) })
            .await
    }

    async fn watch(&self, _: &str, _: bool) -> Result<FileChanges> {
        self.alive(async { Err(Error::NotSupported("the provider `mock` cannot watch files".to_owned())) }).await
    }

    async fn console(&self, lines: usize) -> Result<Vec<String>> {
        self.alive(async { Ok(self.inside.console().newest(lines)) }).await
    }

    async fn ports(&self) -> Result<Vec<ListeningPort>> {
        self.alive(async { Ok(Vec::new()) }).await
    }

    async fn watch_ports(&self, _: Duration) -> Result<PortChanges> {
        self.silent().await
    }

    async fn connect(&self, port: u16, _input: ByteStream) -> Result<ByteStream> {
        check_port(port)?;
        // No command of a mock box can listen.
        self.alive(async { Err(Error::NotFound(format!("nothing listens on port {port} in the box"))) }).await
    }

    async fn listen(&self, port: u16) -> Result<PortConnections> {
        check_port(port)?;
        self.silent().await
    }

    async fn egress(&self) -> Result<EgressRequests> {
        // No command of a mock box can connect.
        self.silent().await
    }

    async fn trust(&self, _: &str) -> Result<()> {
        // No command of a mock box can connect.
        self.alive(async { Ok(()) }).await
    }

    async fn set_deadline(&self, after: Duration) -> Result<()> {
        // Only remembered: the boxes end with the process, so there is no server to outlive.
        *self.inside.deadline() = Some(after);
        self.alive(async { Ok(()) }).await
    }
}
