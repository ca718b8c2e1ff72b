//! Background processes of a box whose output is kept in this process, and not in the box.

mod reader;
mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::Timestamp;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use guest_protocol::frame::Kind;
use guest_protocol::output::{BURST_BYTES, BURST_PAUSE, Pace, Ring};
use guest_protocol::{PROCESS_NOTE_BYTES_MAX, process_command, process_name_fault};
use parking_lot::Mutex;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::io::ReaderStream;

pub(crate) use self::table::{Now, Processes};
use self::table::{Process, Table};
use crate::{
    Background, BackgroundStdin, ByteStream, Command, Error, ExitStatus, Interactive, OutputEvent, OutputStream,
    ProcessAction, ProcessInfo, Result, Signal, TerminalSize,
};

/// Stdin that waits for a process to read it, in bytes: as much as a pipe of Linux takes.
const PIPE_BYTES: usize = 64 * 1024;
/// Interval between looks whether a process still has to wait for readers.
const READERS_LOOK: Duration = Duration::from_secs(1);
/// Exit code of a process that was removed: signal 9.
const CODE_KILLED: i32 = 128 + 9;

/// A command that was started for the background.
pub(crate) struct Launched {
    pub(crate) interactive: Interactive,
    /// Process id in the box.
    pub(crate) pid: u32,
    /// Work that kills the command with all its descendants. It is done after the output was dropped, and ends when
    /// none of them runs.
    pub(crate) kill: BoxFuture<'static, ()>,
}

/// A process that runs already, as its box describes it.
pub(crate) struct Found {
    pub(crate) number: u64,
    pub(crate) name: Option<String>,
    pub(crate) command: String,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) linger: Option<Duration>,
}

/// Properties of a process that do not change.
struct Properties {
    number: u64,
    name: Option<String>,
    command: String,
    note: Option<String>,
    terminal: Option<TerminalSize>,
    pace: Pace,
    linger: Option<Duration>,
    started: Timestamp,
}

/// The number and the name of a process that is being started; they are free again when it is dropped.
struct Reserved<'a> {
    processes: &'a Processes,
    number: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.processes.table.lock().starting.remove(&self.number);
    }
}

impl Processes {
    fn reserve(&self, name: Option<&str>) -> Result<Reserved<'_>> {
        let mut table = self.table.lock();
        table.check(name)?;
        table.last += 1;
        let number = table.last;
        table.starting.insert(number, name.map(str::to_owned));
        Ok(Reserved { processes: self, number })
    }

    /// Starts a process by `launch`, which gets its number and the command with its stdin.
    pub(crate) async fn start<F: Future<Output = Result<Launched>>>(
        self: &Arc<Self>,
        mut command: Command,
        background: Background,
        launch: impl FnOnce(u64, Command) -> F,
    ) -> Result<ProcessInfo> {
        let Background { name, linger, is_lossless, is_paced, note, input, stdin } = background;
        if let Some(fault) = name.as_deref().and_then(process_name_fault) {
            return Err(Error::Invalid(fault));
        }
        if note.as_ref().is_some_and(|note| note.len() > PROCESS_NOTE_BYTES_MAX) {
            return Err(Error::Invalid(format!(
                "the note of a process must be at most {PROCESS_NOTE_BYTES_MAX} bytes"
            )));
        }
        let (ours, theirs) = duplex(PIPE_BYTES);
        let takes_input = stdin == BackgroundStdin::Open;
        command.stdin = stdin_of(input, takes_input.then_some(theirs));
        let text = process_command(&command.argv);
        let terminal = command.terminal;
        let reserved = self.reserve(name.as_deref())?;
        let launched = launch(reserved.number, command).await?;
        let properties = Properties {
            number: reserved.number,
            name,
            command: text,
            note,
            terminal,
            pace: Pace::of(is_lossless, is_paced),
            linger,
            started: (self.now)(),
        };
        drop(reserved);
        Ok(self.keep(properties, ours, takes_input, launched))
    }

    /// Keeps the output of a process that runs already, from now on. `follow` gets the stream of its stdin.
    pub(crate) async fn adopt<F: Future<Output = Result<Launched>>>(
        self: &Arc<Self>,
        found: Found,
        follow: impl FnOnce(ByteStream) -> F,
    ) -> Result<()> {
        let Found { number, name, command, terminal, linger } = found;
        let (ours, theirs) = duplex(PIPE_BYTES);
        let stdin = ReaderStream::new(theirs).map(|read| read.map_err(|_| Error::Gone)).boxed();
        let launched = follow(stdin).await?;
        if self.has(number) {
            return Ok(());
        }
        let started = (self.now)();
        let properties = Properties { number, name, command, note: None, terminal, pace: Pace::Free, linger, started };
        self.keep(properties, ours, true, launched);
        Ok(())
    }

    /// Enters a process that was started, and begins to keep its output.
    fn keep(
        self: &Arc<Self>,
        properties: Properties,
        stdin: DuplexStream,
        takes_input: bool,
        launched: Launched,
    ) -> ProcessInfo {
        let Launched { interactive: Interactive { output, control }, pid, kill } = launched;
        let Properties { number, name, command, note, terminal, pace, linger, started } = properties;
        let capacity = pace.ring_bytes();
        let process = Arc::new(Process {
            number,
            name,
            command,
            started,
            note,
            pid,
            terminal: Mutex::new(terminal),
            pace,
            began: Instant::now(),
            ended: Mutex::default(),
            positions: Mutex::default(),
            input_turn: AsyncMutex::default(),
            control,
            ring: Mutex::new(Ring::new(capacity, &self.room, None)),
            stdin: AsyncMutex::new(stdin),
            takes_input: watch::Sender::new(takes_input),
            exit: Mutex::default(),
            news: watch::Sender::new(()),
            readers: watch::Sender::new(0),
            sent: Mutex::default(),
            sent_on: Notify::new(),
            ending: watch::Sender::new(false),
        });
        self.table.lock().enter(&process);
        let info = process.info();
        if let Some(linger) = linger {
            self.until_gone(end_when_left(Arc::clone(self), Arc::clone(&process), linger));
        }
        self.until_gone(keep(Arc::clone(self), process, output, kill));
        info
    }

    /// Runs a task until the box ends.
    fn until_gone(&self, work: impl Future<Output = ()> + Send + 'static) {
        let dead = self.dead.clone();
        self.tasks.spawn(async move {
            let _ = dead.run_until_cancelled(work).await;
        });
    }

    /// Writes to the stdin of a process.
    pub(crate) async fn input(&self, number: u64, mut content: ByteStream, end: bool) -> Result<()> {
        let process = self.get(number)?;
        process.check_input()?;
        // So that what one caller sends at once is not mixed with what another one does.
        let _turn = process.input_turn.lock().await;
        while let Some(piece) = content.next().await {
            process.give(piece?).await?;
        }
        if end {
            process.end_input().await;
        }
        Ok(())
    }

    /// Carries out an action on a process.
    pub(crate) async fn control(&self, number: u64, action: ProcessAction) -> Result<()> {
        let process = self.get(number)?;
        match action {
            ProcessAction::Signal(_) | ProcessAction::SignalCommand(_) if process.exit().is_some() => Ok(()),
            ProcessAction::Resize(size) => {
                process.control.resize(size).await?;
                process.terminal.lock().replace(size);
                Ok(())
            }
            ProcessAction::Signal(signal) => process.control.signal(signal).await,
            ProcessAction::SignalCommand(signal) => process.control.signal_command(signal).await,
        }
    }

    /// Ends a process with all its descendants, and forgets it.
    pub(crate) async fn remove(&self, number: u64) -> Result<()> {
        let process = self.get(number)?;
        let mut news = process.news.subscribe();
        process.ending.send_replace(true);
        while process.exit().is_none() {
            let changed = self.dead.run_until_cancelled(news.changed()).await;
            if !matches!(changed, Some(Ok(()))) {
                return Err(Error::Gone);
            }
        }
        self.forget(number);
        Ok(())
    }
}

impl Table {
    /// Enters a process. An ended one gives its name up.
    fn enter(&mut self, process: &Arc<Process>) {
        self.by_number.retain(|_, other| other.name.is_none() || other.name != process.name);
        self.last = self.last.max(process.number);
        self.by_number.insert(process.number, Arc::clone(process));
    }
}

/// Returns the stdin of a process: its first bytes, and what is written later if it stays open; `None` for none.
fn stdin_of(input: Bytes, later: Option<DuplexStream>) -> Option<ByteStream> {
    let is_empty = input.is_empty() && later.is_none();
    let first = stream::iter((!input.is_empty()).then_some(Ok(input)));
    let stdin = match later {
        Some(later) => first.chain(ReaderStream::new(later).map(|read| read.map_err(|_| Error::Gone))).boxed(),
        None => first.boxed(),
    };
    (!is_empty).then_some(stdin)
}

/// Keeps the output of a process up to its end.
async fn keep(
    processes: Arc<Processes>,
    process: Arc<Process>,
    mut output: OutputStream,
    kill: BoxFuture<'static, ()>,
) {
    let mut ending = process.ending.subscribe();
    let exit = tokio::select! {
        exit = collect(&process, &mut output) => exit,
        _ = ending.wait_for(|ending| *ending) => None,
    };
    drop(output);
    let killed = || ExitStatus {
        code: CODE_KILLED,
        signal: Signal::named("KILL"),
        timed_out: false,
        oom_killed: false,
        pids_exhausted: false,
        duration: process.began.elapsed(),
    };
    let exit = match exit {
        Some(exit) => exit,
        None => {
            kill.await;
            killed()
        }
    };
    process.ended(exit);
    processes.forget_old();
}

/// Moves output into the ring. Returns the exit, or `None` if the output has ended without one.
async fn collect(process: &Process, output: &mut OutputStream) -> Option<ExitStatus> {
    let mut burst = 0;
    loop {
        while process.is_ahead() {
            // A first reader that never comes notifies nothing.
            let _ = timeout(READERS_LOOK, process.sent_on.notified()).await;
        }
        let (kind, bytes) = match output.next().await?.ok()? {
            OutputEvent::Stdout(bytes) => (Kind::Stdout, bytes),
            OutputEvent::Stderr(bytes) => (Kind::Stderr, bytes),
            OutputEvent::Exit(exit) => return Some(exit),
        };
        process.append(kind, &bytes);
        burst += bytes.len();
        if burst >= BURST_BYTES && process.pace == Pace::Free {
            burst = 0;
            sleep(BURST_PAUSE).await;
        }
    }
}

/// Ends and forgets a process that has had no reader for as long as `linger`.
async fn end_when_left(processes: Arc<Processes>, process: Arc<Process>, linger: Duration) {
    let (mut readers, mut ending) = (process.readers.subscribe(), process.ending.subscribe());
    let left = async {
        while readers.wait_for(|readers| *readers == 0).await.is_ok() {
            if timeout(linger, readers.wait_for(|readers| *readers > 0)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = left => {}
        // Removed meanwhile.
        _ = ending.wait_for(|ending| *ending) => {}
    }
    process.ending.send_replace(true);
    processes.forget(process.number);
}
