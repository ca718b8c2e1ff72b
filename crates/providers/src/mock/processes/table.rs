//! The background processes of a box, with what is kept of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use domain::Timestamp;
use guest_protocol::PROCESSES_MAX;
use guest_protocol::frame::Kind;
use guest_protocol::output::{PROCESSES_ENDED_MAX, Ring, Room};
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::timeout;

use crate::agent::{INPUT_STALL_MAX, input_stalled};
use crate::mock::fs::Now;
use crate::{Control, Error, ExitStatus, ProcessInfo, Result};

/// Maximum number of processes that run at once: what a box lists beside those that have ended.
const RUNNING_MAX: usize = PROCESSES_MAX - PROCESSES_ENDED_MAX;
/// Process id that every shell of a box has.
const PID: u32 = 2;

/// The background processes of a box.
pub(in crate::mock) struct Processes {
    pub(super) table: Mutex<Table>,
    pub(super) room: Arc<Room>,
    pub(super) now: Now,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) by_number: BTreeMap<u64, Arc<Process>>,
    /// Number of the process that was started last.
    pub(super) last: u64,
}

impl Processes {
    /// Makes the empty table of a box with `memory_mb` mebibytes of memory. Times are from `now`.
    pub(in crate::mock) fn new(memory_mb: u32, now: Now) -> Processes {
        Processes { table: Mutex::default(), room: Room::of(memory_mb), now }
    }

    /// Describes all processes, by number.
    pub(in crate::mock) fn list(&self) -> Vec<ProcessInfo> {
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
        let ended: Vec<u64> = table.by_number.values().filter(|it| it.exit().is_some()).map(|it| it.number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(PROCESSES_ENDED_MAX)) {
            table.by_number.remove(number);
        }
    }
}

impl Table {
    /// Refuses a process that is one too many, or has the name of another that runs.
    pub(super) fn check(&self, name: Option<&str>) -> Result<()> {
        let mut running = self.by_number.values().filter(|process| process.exit().is_none());
        if let Some(name) = name
            && running.clone().any(|process| process.name.as_deref() == Some(name))
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

/// A process, until it is forgotten.
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) name: Option<String>,
    pub(super) command: String,
    pub(super) started: Timestamp,
    pub(super) is_lossless: bool,
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
            pid: exit.is_none().then_some(PID),
            terminal: None,
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
        let ring = self.ring.lock();
        self.is_lossless && ring.end() - (*self.sent.lock()).min(ring.end()) >= (ring.capacity() / 2) as u64
    }

    /// Notes that a reader has been sent the output up to `position`.
    pub(super) fn sent(&self, position: u64) {
        let mut sent = self.sent.lock();
        if position > *sent {
            *sent = position;
            self.sent_on.notify_one();
        }
    }

    pub(super) fn ended(&self, exit: ExitStatus) {
        self.takes_input.send_replace(false);
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
pub(super) struct Counted(Arc<Process>);

impl Counted {
    pub(super) fn of(process: &Arc<Process>) -> Counted {
        process.readers.send_modify(|readers| *readers += 1);
        Counted(Arc::clone(process))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.readers.send_modify(|readers| *readers -= 1);
    }
}
