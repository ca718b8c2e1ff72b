//! Background processes of a box in memory.

pub(super) mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use guest_protocol::frame::{HEADER_BYTES, Kind, parse_header};
use guest_protocol::output::{BURST_BYTES, BURST_PAUSE, LOSSLESS_RING_BYTES, RING_BYTES, Read, Ring};
use guest_protocol::{PROCESS_NOTE_BYTES_MAX, process_command, process_name_fault};
use parking_lot::Mutex;
use tokio::io::duplex;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use self::table::{Counted, Pace, Process};
use super::boxed::Boxed;
use super::shell::run;
use crate::{
    Attach, AttachFrom, Background, BackgroundStdin, ByteStream, Command, Error, ExitStatus, OutputEvent, OutputStream,
    ProcessAction, ProcessEvent, ProcessEvents, ProcessInfo, ProcessInput, Result, Signal,
};

/// Stdin that waits for a process to read it, in bytes: as much as a pipe of Linux takes.
const PIPE_BYTES: usize = 64 * 1024;
/// Interval between looks whether a process still has to wait for readers.
const READERS_LOOK: Duration = Duration::from_secs(1);
/// Exit code of a process that was removed: signal 9.
const CODE_KILLED: i32 = 128 + 9;

/// Starts a process in a box.
pub(super) fn start(inside: &Arc<Boxed>, mut command: Command, background: Background) -> Result<ProcessInfo> {
    let Background { name, linger, is_lossless, is_paced, note, input, stdin } = background;
    if let Some(fault) = name.as_deref().and_then(process_name_fault) {
        return Err(Error::Invalid(fault));
    }
    if note.as_ref().is_some_and(|note| note.len() > PROCESS_NOTE_BYTES_MAX) {
        return Err(Error::Invalid(format!("the note of a process must be at most {PROCESS_NOTE_BYTES_MAX} bytes")));
    }
    let (ours, theirs) = duplex(PIPE_BYTES);
    let takes_input = stdin == BackgroundStdin::Open;
    let first = stream::iter((!input.is_empty()).then_some(Ok(input)));
    command.stdin = Some(if takes_input {
        first.chain(ReaderStream::new(theirs).map(|read| read.map_err(|_| Error::Gone))).boxed()
    } else {
        first.boxed()
    });
    let text = process_command(&command.argv);
    let processes = inside.processes();
    let mut table = processes.table.lock();
    table.check(name.as_deref())?;
    let running = run::start(inside, command)?;
    table.last += 1;
    let pace = Pace::of(is_lossless, is_paced);
    let capacity = if pace == Pace::Free { RING_BYTES } else { LOSSLESS_RING_BYTES };
    let process = Arc::new(Process {
        number: table.last,
        name,
        command: text,
        started: (processes.now)(),
        note,
        pace,
        began: Instant::now(),
        ended: Mutex::default(),
        positions: Mutex::default(),
        input_turn: AsyncMutex::default(),
        control: running.interactive.control,
        ring: Mutex::new(Ring::new(capacity, &processes.room, None)),
        stdin: AsyncMutex::new(ours),
        takes_input: watch::Sender::new(takes_input),
        exit: Mutex::default(),
        news: watch::Sender::new(()),
        readers: watch::Sender::new(0),
        sent: Mutex::default(),
        sent_on: Notify::new(),
        ending: watch::Sender::new(false),
    });
    // An ended one gives its name up.
    table.by_number.retain(|_, other| other.name.is_none() || other.name != process.name);
    table.by_number.insert(process.number, Arc::clone(&process));
    drop(table);
    let info = process.info();
    if let Some(linger) = linger {
        until_gone(inside, end_when_left(Arc::clone(inside), Arc::clone(&process), linger));
    }
    until_gone(inside, keep(Arc::clone(inside), process, running.interactive.output, running.tasks));
    Ok(info)
}

/// Runs a task until the box ends.
fn until_gone(inside: &Boxed, work: impl Future<Output = ()> + Send + 'static) {
    let dead = inside.dead().clone();
    inside.tasks().spawn(async move {
        let _ = dead.run_until_cancelled(work).await;
    });
}

/// Keeps the output of a process up to its end.
async fn keep(inside: Arc<Boxed>, process: Arc<Process>, mut output: OutputStream, tasks: run::Tasks) {
    let began = Instant::now();
    let mut ending = process.ending.subscribe();
    let exit = tokio::select! {
        exit = collect(&process, &mut output) => exit,
        _ = ending.wait_for(|ending| *ending) => None,
    };
    // This is what kills it.
    drop(output);
    let killed = || ExitStatus {
        code: CODE_KILLED,
        signal: Signal::named("KILL"),
        timed_out: false,
        oom_killed: false,
        pids_exhausted: false,
        duration: began.elapsed(),
    };
    let exit = match exit {
        Some(exit) => exit,
        None => {
            tasks.ended().await;
            killed()
        }
    };
    process.ended(exit);
    inside.processes().forget_old();
}

/// Moves output into the ring. Returns the exit, or `None` if the box has ended.
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
async fn end_when_left(inside: Arc<Boxed>, process: Arc<Process>, linger: Duration) {
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
    inside.processes().forget(process.number);
}

/// Begins to read the output of a process.
pub(super) fn attach(inside: &Arc<Boxed>, number: u64, attach: Attach) -> Result<ProcessEvents> {
    let process = inside.processes().get(number)?;
    let (first, end) = {
        let ring = process.ring.lock();
        (ring.first(), ring.end())
    };
    let position = match attach.from {
        AttachFrom::Position(position) if position > end => {
            return Err(Error::Invalid(format!("the process has written {end} bytes so far, not {position}")));
        }
        AttachFrom::Position(position) => position,
        AttachFrom::Screen => first,
    };
    let mut feeding = JoinSet::new();
    if let Some(input) = attach.input {
        feeding.spawn(feed(Arc::clone(&process), input));
    }
    let reader = Reader {
        news: process.news.subscribe(),
        counted: Counted::of(&process, position),
        process,
        position,
        is_begun: false,
        follow: attach.follow,
        dead: inside.dead().clone(),
        _feeding: feeding,
    };
    let events = stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(None) => None,
            Ok(Some(event @ ProcessEvent::Exit(_))) => Some((Ok(event), None)),
            Ok(Some(event)) => Some((Ok(event), Some(reader))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(events.boxed())
}

/// Passes the input of a reader on.
async fn feed(process: Arc<Process>, mut input: BoxStream<'static, ProcessInput>) {
    while let Some(next) = input.next().await {
        match next {
            // A process without an open stdin drops what is written, as one that has closed it.
            ProcessInput::Bytes(bytes) => drop(process.give(bytes).await),
            ProcessInput::End => process.end_input().await,
        }
    }
}

/// A reader of a process's output.
struct Reader {
    process: Arc<Process>,
    news: watch::Receiver<()>,
    /// Position of the byte that comes next.
    position: u64,
    /// True once the reader knows the position.
    is_begun: bool,
    follow: bool,
    dead: CancellationToken,
    counted: Counted,
    _feeding: JoinSet<()>,
}

impl Reader {
    /// Returns the next event; `None` at the newest output if the reader does not follow.
    async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        if !std::mem::replace(&mut self.is_begun, true) {
            return Ok(Some(ProcessEvent::Position(self.position)));
        }
        loop {
            if self.dead.is_cancelled() {
                return Err(Error::Gone);
            }
            self.news.mark_unchanged();
            // Before the ring: what is written before the end is in it.
            let exit = self.process.exit();
            let read = self.process.ring.lock().read(self.position);
            match read {
                Read::Frame(frame, next) => {
                    self.position = next;
                    self.counted.sent(next);
                    return Ok(Some(output(&frame)));
                }
                Read::Lost(oldest) => {
                    self.position = oldest;
                    self.counted.sent(oldest);
                    return Ok(Some(ProcessEvent::Position(oldest)));
                }
                Read::Nothing => {}
            }
            if exit.is_some() || !self.follow {
                return Ok(exit.map(ProcessEvent::Exit));
            }
            let changed = self.dead.run_until_cancelled(self.news.changed()).await;
            if !matches!(changed, Some(Ok(()))) {
                return Err(Error::Gone);
            }
        }
    }
}

/// Returns the output that a frame of the ring holds.
fn output(frame: &Bytes) -> ProcessEvent {
    let is_stderr = frame.first_chunk().is_some_and(|head| matches!(parse_header(*head), Ok((Kind::Stderr, _))));
    let bytes = frame.slice(HEADER_BYTES..);
    if is_stderr { ProcessEvent::Stderr(bytes) } else { ProcessEvent::Stdout(bytes) }
}

/// Writes to the stdin of a process.
pub(super) async fn input(inside: &Boxed, number: u64, mut content: ByteStream, end: bool) -> Result<()> {
    let process = inside.processes().get(number)?;
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
pub(super) async fn control(inside: &Boxed, number: u64, action: ProcessAction) -> Result<()> {
    let process = inside.processes().get(number)?;
    match action {
        ProcessAction::Signal(_) | ProcessAction::SignalCommand(_) if process.exit().is_some() => Ok(()),
        ProcessAction::Resize(size) => process.control.resize(size).await,
        ProcessAction::Signal(signal) | ProcessAction::SignalCommand(signal) => process.control.signal(signal).await,
    }
}

/// Ends a process with all its descendants, and forgets it.
pub(super) async fn remove(inside: &Boxed, number: u64) -> Result<()> {
    let process = inside.processes().get(number)?;
    let mut news = process.news.subscribe();
    process.ending.send_replace(true);
    while process.exit().is_none() {
        news.changed().await.map_err(|_| Error::Gone)?;
    }
    inside.processes().forget(number);
    Ok(())
}
