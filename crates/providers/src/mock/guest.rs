//! A box in memory, and its inside.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use domain::SandboxId;
use futures_util::{StreamExt, stream};
use guest_protocol::CONSOLE_LINES_MAX;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Now;
use super::faults::Faults;
use super::fs::FileSystem;
use super::shell::run;
use crate::agent::{check_mode, check_path};
use crate::{ByteStream, Command, Error, FileContent, FileInfo, Guest, Interactive, OutputStream, Result, Spec};

/// Size of the file system if the request sets no limit, in bytes.
const DISK_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;
/// The longest console line, in bytes.
const LINE_BYTES_MAX: usize = 4096;
/// Size of the pieces in which a file is read, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

pub(super) struct Boxed {
    fs: Mutex<FileSystem>,
    console: Mutex<Console>,
    faults: Faults,
    stops: AtomicU32,
    execs: AtomicU32,
    dead: CancellationToken,
    tasks: TaskTracker,
    /// Slots; `None` for a box that was not made to hold any.
    slots: Option<Mutex<BTreeMap<SandboxId, Arc<Boxed>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Boxed {
    /// Makes a box with an initial file system.
    pub(super) fn new(spec: &Spec, faults: Faults, now: Now, tasks: TaskTracker) -> Result<Boxed> {
        let bytes_max = match spec.resources.disk_mb {
            0 => DISK_BYTES_DEFAULT,
            disk_mb => u64::from(disk_mb) * 1024 * 1024,
        };
        Ok(Boxed {
            fs: Mutex::new(FileSystem::new(bytes_max, now)?),
            console: Mutex::default(),
            faults,
            stops: AtomicU32::new(0),
            execs: AtomicU32::new(0),
            dead: CancellationToken::new(),
            tasks,
            slots: None,
        })
    }

    /// Makes this box one that holds slots.
    pub(super) fn holding_slots(self) -> Boxed {
        Boxed { slots: Some(Mutex::default()), ..self }
    }

    /// Makes this box a slot of `host`, which ends with it.
    pub(super) fn in_box(self, host: &Boxed) -> Boxed {
        Boxed { dead: host.dead.child_token(), ..self }
    }

    /// Returns the slots, or `None` if the box was not made to hold any.
    pub(super) fn slots(&self) -> Option<MutexGuard<'_, BTreeMap<SandboxId, Arc<Boxed>>>> {
        self.slots.as_ref().map(lock)
    }

    /// Returns a token that is cancelled when the box has ended.
    pub(super) fn dead(&self) -> &CancellationToken {
        &self.dead
    }

    /// Ends the box with everything that runs in it.
    pub(super) fn kill(&self) {
        self.dead.cancel();
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Counts a stop, and returns whether it has to fail.
    pub(super) fn is_stop_refused(&self) -> bool {
        self.stops.fetch_add(1, Ordering::Relaxed) < self.faults.stop_fail
    }

    pub(super) fn fs(&self) -> MutexGuard<'_, FileSystem> {
        lock(&self.fs)
    }

    /// Returns the console, to which background processes write.
    pub(super) fn console(&self) -> MutexGuard<'_, Console> {
        lock(&self.console)
    }

    /// Returns the tracker of tasks that outlive a request, until they or the box end.
    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }
}

/// The newest lines of what background processes wrote.
#[derive(Default)]
pub(super) struct Console {
    lines: VecDeque<String>,
    partial: BytesMut,
}

impl Console {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let room = LINE_BYTES_MAX.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                if self.lines.len() == CONSOLE_LINES_MAX {
                    self.lines.pop_front();
                }
                self.lines.push_back(String::from_utf8_lossy(&self.partial).into_owned());
                self.partial.clear();
            }
        }
    }

    /// Returns the newest lines, including an unfinished one.
    fn newest(&self, lines: usize) -> Vec<String> {
        let partial = (!self.partial.is_empty()).then(|| String::from_utf8_lossy(&self.partial).into_owned());
        let all = self.lines.len() + usize::from(partial.is_some());
        self.lines.iter().cloned().chain(partial).skip(all.saturating_sub(lines)).collect()
    }
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
        self.inside.dead.run_until_cancelled(work).await.unwrap_or(Err(Error::Gone))
    }

    /// Performs one operation on the files, with the delay that the labels request.
    async fn files<T>(&self, work: impl FnOnce(&mut FileSystem) -> Result<T>) -> Result<T> {
        self.alive(async {
            if let Some(delay) = self.inside.faults.file_delay {
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
        self.alive(async {
            if let Some(delay) = self.inside.faults.exec_delay {
                tokio::time::sleep(delay).await;
            }
            if self.inside.execs.fetch_add(1, Ordering::Relaxed) < self.inside.faults.exec_fail {
                return Err(Error::failed("run a command", "the label mock.exec_fail asks for it"));
            }
            run::start(&self.inside, command)
        })
        .await
    }

    async fn read_file(&self, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent> {
        let (info, content) = self.files(|fs| fs.read(path)).await?;
        let size = content.len() as u64;
        let begin = offset.min(size);
        let end = length.map_or(size, |length| begin.saturating_add(length).min(size));
        let bounded = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let content = content.slice(bounded(begin)..bounded(end));
        let dead = self.inside.dead.clone();
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

    async fn console(&self, lines: usize) -> Result<Vec<String>> {
        self.alive(async { Ok(self.inside.console().newest(lines)) }).await
    }

    async fn set_deadline(&self, after: Duration) -> Result<()> {
        // The boxes end with the process, so there is no server to outlive.
        let _ = after;
        self.alive(async { Ok(()) }).await
    }
}
