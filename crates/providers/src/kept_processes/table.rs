//! The background processes of a box, with what is kept of each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use domain::Timestamp;
use guest_protocol::frame::Kind;
use guest_protocol::output::{ENDED_KEPT, PROCESSES_ENDED_MAX, PROCESSES_ENDED_MIN, Pace, Ring, Room};
use guest_protocol::{FIRST_READER_WAIT, PROCESS_NOTE_KEPT_BYTES_MAX, PROCESSES_MAX};
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::{INPUT_STALL_MAX, input_stalled};
use crate::{Control, Error, ExitStatus, ProcessInfo, Result, TerminalSize};

/// Maximum number of processes that run at once: what a box lists beside those that have ended.
const RUNNING_MAX: usize = PROCESSES_MAX - PROCESSES_ENDED_MAX;

/// Clock of the times of processes.
pub(crate) type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The background processes of a box.
pub(crate) struct Processes {
    pub(super) table: Mutex<Table>,
    pub(super) room: Arc<Room>,
    pub(super) now: Now,
    /// Cancelled when the box has ended.
    pub(super) dead: CancellationToken,
    /// Tasks that keep output.
    pub(super) tasks: TaskTracker,
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes").finish_non_exhaustive()
    }
}

pub(super) struct Table {
    pub(super) by_number: BTreeMap<u64, Arc<Process>>,
    /// Names of processes that are being started, by number.
    pub(super) starting: BTreeMap<u64, Option<String>>,
    /// Number of the process that was started last.
    pub(super) last: u64,
}

impl Processes {
    /// Makes the empty table of a box that ends with `dead`, with `room` for its output. Times are from `now`, and
    /// numbers begin after `last`.
    pub(crate) fn new(room: Arc<Room>, now: Now, last: u64, dead: CancellationToken, tasks: TaskTracker) -> Processes {
        let table = Mutex::new(Table { by_number: BTreeMap::new(), starting: BTreeMap::new(), last });
        Processes { table, room, now, dead, tasks }
    }

    /// Returns an empty table like this one, of a box that ends with `dead`.
    pub(crate) fn ending_with(&self, dead: CancellationToken) -> Processes {
        let last = self.table.lock().last;
        Processes::new(Arc::clone(&self.room), Arc::clone(&self.now), last, dead, self.tasks.clone())
    }

    /// Returns whether a process with this number is kept.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.table.lock().by_number.contains_key(&number)
    }

    /// Returns whether a process with this number is being started.
    pub(crate) fn is_starting(&self, number: u64) -> bool {
        self.table.lock().starting.contains_key(&number)
    }

    /// Describes all processes, by number.
    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        self.table.lock().by_number.values().map(|process| process.info()).collect()
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Process>> {
        let none = || format!("there is no process {number}; ended processes are not kept forever");
        self.table.lock().by_number.get(&number).cloned().ok_or_else(|| Error::NotFound(none()))
    }

    pub(super) fn forget(&self, number: u64) {
        self.table.lock().by_number.remove(&number);
    }

    /// Forgets those that ended first, beyond the number that is remembered.
    pub(super) fn forget_old(&self) {
        let mut table = self.table.lock();
        let ended = table.by_number.values().filter_map(|process| Some(((*process.ended.lock())?, process.number)));
        let mut ended: Vec<(Instant, u64)> = ended.collect();
        ended.sort_unstable();
        let newer = (1..=ended.len()).rev();
        for ((at, number), remembered) in ended.iter().zip(newer) {
            let is_old = at.elapsed() > ENDED_KEPT && remembered > PROCESSES_ENDED_MIN;
            if !is_old && remembered <= PROCESSES_ENDED_MAX {
                break;
            }
            table.by_number.remove(number);
        }
    }
}

impl Table {
    /// Refuses a process that is one too many, or has the name of another that runs.
    pub(super) fn check(&self, name: Option<&str>) -> Result<()> {
        let running = self.by_number.values().filter(|process| process.exit().is_none());
        let running = running.map(|process| process.name.as_deref());
        let mut running = running.chain(self.starting.values().map(Option::as_deref));
        if let Some(name) = name
            && running.clone().any(|other| other == Some(name))
        {
            return Err(Error::Conflict(format!(
                "a process named `{name}` is already running; attach to it, or end it first"
            )));
        }
        match running.nth(RUNNING_MAX - 1) {
            Some(_) => {
                Err(Error::Exhausted(format!("{RUNNING_MAX} processes are running in the sandbox; end one first")))
            }
            None => Ok(()),
        }
    }
}

/// Positions of readers, by the number of the reader.
#[derive(Debug, Default)]
pub(super) struct Readers {
    last: u64,
    by_number: BTreeMap<u64, u64>,
}

/// A process, until it is forgotten.
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) name: Option<String>,
    pub(super) command: String,
    pub(super) started: Timestamp,
    pub(super) note: Option<String>,
    pub(super) pid: u32,
    pub(super) terminal: Mutex<Option<TerminalSize>>,
    pub(super) pace: Pace,
    pub(super) began: Instant,
    /// Time of the end.
    pub(super) ended: Mutex<Option<Instant>>,
    /// Position up to which each reader has been sent the output.
    pub(super) positions: Mutex<Readers>,
    /// Turn to write to stdin.
    pub(super) input_turn: AsyncMutex<()>,
    pub(super) control: Arc<dyn Control>,
    pub(super) ring: Mutex<Ring>,
    pub(super) stdin: AsyncMutex<DuplexStream>,
    /// True while its stdin can be written.
    pub(super) takes_input: watch::Sender<bool>,
    pub(super) exit: Mutex<Option<ExitStatus>>,
    /// Changes with each output and at the end.
    pub(super) news: watch::Sender<()>,
    /// Number of readers.
    pub(super) readers: watch::Sender<usize>,
    /// Position up to which some reader has been sent the output.
    pub(super) sent: Mutex<u64>,
    /// Notified when `sent` has risen.
    pub(super) sent_on: Notify,
    /// True once the process is to end.
    pub(super) ending: watch::Sender<bool>,
}

impl Process {
    pub(super) fn info(&self) -> ProcessInfo {
        let exit = self.exit();
        let ring = self.ring.lock();
        ProcessInfo {
            process: self.number,
            name: self.name.clone(),
            command: self.command.clone(),
            pid: exit.is_none().then_some(self.pid),
            ended_pid: exit.is_some().then_some(self.pid),
            is_stdin_open: *self.takes_input.borrow(),
            note: self.note.clone().filter(|note| exit.is_none() || note.len() <= PROCESS_NOTE_KEPT_BYTES_MAX),
            terminal: *self.terminal.lock(),
            started: self.started,
            exit,
            first: ring.first(),
            end: ring.end(),
            readers: *self.readers.borrow(),
        }
    }

    /// Returns the exit once it has ended.
    pub(super) fn exit(&self) -> Option<ExitStatus> {
        *self.exit.lock()
    }

    pub(super) fn append(&self, kind: Kind, bytes: &[u8]) {
        self.ring.lock().append(kind, bytes);
        self.news.send_replace(());
    }

    /// Returns whether a process that waits for its readers has written as much as they may be behind.
    pub(super) fn is_ahead(&self) -> bool {
        let readers = self.positions.lock();
        let sent = match self.pace {
            Pace::Free => None,
            Pace::Fastest => Some(*self.sent.lock()),
            Pace::Slowest if readers.last == 0 => (self.began.elapsed() < FIRST_READER_WAIT).then_some(0),
            Pace::Slowest => readers.by_number.values().min().copied(),
        };
        drop(readers);
        let ring = self.ring.lock();
        sent.is_some_and(|sent| ring.end() - sent.min(ring.end()) >= (ring.capacity() / 2) as u64)
    }

    pub(super) fn ended(&self, exit: ExitStatus) {
        self.takes_input.send_replace(false);
        *self.ended.lock() = Some(Instant::now());
        *self.exit.lock() = Some(exit);
        self.news.send_replace(());
    }

    /// Refuses input for a stdin that is not open.
    pub(super) fn check_input(&self) -> Result<()> {
        let closed =
            || format!("process {} has no open stdin; start it with one, and write before it ends", self.number);
        if *self.takes_input.borrow() { Ok(()) } else { Err(Error::Conflict(closed())) }
    }

    /// Writes to its stdin, and waits until it has taken the bytes.
    pub(super) async fn give(&self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            self.check_input()?;
            let writes = async { self.stdin.lock().await.write_buf(&mut bytes).await };
            let written = timeout(INPUT_STALL_MAX, writes).await.map_err(|_| input_stalled())?;
            written.map_err(|_| Error::Conflict("the process has ended".to_owned()))?;
        }
        Ok(())
    }

    /// Ends its stdin.
    pub(super) async fn end_input(&self) {
        if self.takes_input.send_replace(false) {
            // One that has ended needs no end of its stdin.
            let _ = self.stdin.lock().await.shutdown().await;
        }
    }
}

/// A reader, counted until it is dropped.
pub(super) struct Counted {
    process: Arc<Process>,
    number: u64,
}

impl Counted {
    /// Counts a reader that begins at `position`.
    pub(super) fn of(process: &Arc<Process>, position: u64) -> Counted {
        process.readers.send_modify(|readers| *readers += 1);
        let mut readers = process.positions.lock();
        readers.last += 1;
        let number = readers.last;
        readers.by_number.insert(number, position);
        drop(readers);
        Counted { process: Arc::clone(process), number }
    }

    /// Notes that this reader has been sent the output up to `position`.
    pub(super) fn sent(&self, position: u64) {
        self.process.positions.lock().by_number.insert(self.number, position);
        let mut sent = self.process.sent.lock();
        *sent = position.max(*sent);
        self.process.sent_on.notify_one();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.process.positions.lock().by_number.remove(&self.number);
        self.process.readers.send_modify(|readers| *readers -= 1);
        self.process.sent_on.notify_one();
    }
}
