//! The background processes of a box, with what is kept of each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use guest_protocol::frame::{Kind, PAYLOAD_BYTES_MAX};
use guest_protocol::output::{ENDED_KEPT, PROCESSES_ENDED_MAX, PROCESSES_ENDED_MIN, Pace, Read, Ring, Room};
use guest_protocol::{
    Action, AttachFrom, Control, Exit, FIRST_READER_WAIT, PROCESS_NOTE_KEPT_BYTES_MAX, ProcessInfo, TerminalSize,
};
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::screen::Screen;
use super::spill::nameless_file;
use crate::exec::reapers::Reaper;
use crate::failure::{Result, conflict, not_found};

/// Input for a process.
#[derive(Debug)]
pub(super) enum Fed {
    /// Bytes, and how to say that the process has taken them.
    Bytes(Bytes, oneshot::Sender<()>),
    /// The end.
    End,
}

/// All background processes, by number.
#[derive(Debug)]
pub(crate) struct Background {
    by_number: RefCell<BTreeMap<u64, Rc<Process>>>,
    room: Arc<Room>,
    may_use_disk: bool,
}

/// Parts of a process that has just started.
pub(super) struct Started {
    pub(super) number: u64,
    pub(super) name: Option<String>,
    pub(super) command: String,
    pub(super) started_ms: i64,
    pub(super) terminal: Option<TerminalSize>,
    pub(super) pace: Pace,
    pub(super) note: Option<String>,
    pub(super) stdin: Option<mpsc::Sender<Fed>>,
    pub(super) reaper: Rc<Reaper>,
}

/// A process, until it is forgotten.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) number: u64,
    name: Option<String>,
    command: String,
    started_ms: i64,
    terminal: Cell<Option<TerminalSize>>,
    reaper: Rc<Reaper>,
    pace: Pace,
    note: RefCell<Option<String>>,
    started: Instant,
    /// Time of the end.
    ended: Cell<Option<Instant>>,
    /// Position up to which each reader has been sent the output, by the reader's number.
    positions: RefCell<BTreeMap<u64, u64>>,
    /// Number of the reader that came last.
    last_reader: Cell<u64>,
    /// Turn to write to stdin.
    pub(super) input_turn: AsyncMutex<()>,
    ring: RefCell<Ring>,
    screen: RefCell<Option<Screen>>,
    stdin: RefCell<Option<mpsc::Sender<Fed>>>,
    exit: RefCell<Option<Exit>>,
    /// Changes with each output and at the end.
    news: watch::Sender<()>,
    /// Number of readers.
    readers: watch::Sender<usize>,
    /// Position up to which some reader has been sent the output.
    sent: Cell<u64>,
    /// Notified when `sent` has risen.
    pub(super) sent_on: Notify,
    /// True once the process is to end.
    pub(super) ending: watch::Sender<bool>,
}

/// A reader of a process's output, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) process: Rc<Process>,
    pub(super) news: watch::Receiver<()>,
    number: u64,
}

impl Reader {
    /// Notes that this reader has been sent the output up to `position`.
    pub(super) fn sent(&self, position: u64) {
        self.process.positions.borrow_mut().insert(self.number, position);
        self.process.sent(position);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.process.positions.borrow_mut().remove(&self.number);
        self.process.readers.send_modify(|readers| *readers -= 1);
        self.process.sent_on.notify_one();
    }
}

impl Background {
    /// Makes the empty table of a box with `memory_mb` mebibytes of memory, whose files may hold output
    /// if `may_use_disk`.
    pub(crate) fn new(memory_mb: u32, may_use_disk: bool) -> Background {
        Background { by_number: RefCell::default(), room: Room::of(memory_mb), may_use_disk }
    }

    /// Refuses a name that a running process has.
    ///
    /// # Errors
    /// Conflict, with the process that has it.
    pub(super) fn check_name(&self, name: Option<&str>) -> Result<()> {
        let Some(name) = name else { return Ok(()) };
        let processes = self.by_number.borrow();
        match processes.values().find(|process| process.name.as_deref() == Some(name) && process.runs()) {
            Some(_) => {
                Err(conflict(format!("a process named `{name}` is already running; attach to it, or end it first")))
            }
            None => Ok(()),
        }
    }

    /// Lists a process that has started. An ended one of the same name is forgotten.
    pub(super) fn add(&self, started: Started) -> Rc<Process> {
        let Started { number, name, command, started_ms, terminal, pace, note, stdin, reaper } = started;
        let screen = terminal.and_then(|size| Screen::new(size, &self.room));
        let capacity = pace.ring_bytes();
        let process = Rc::new(Process {
            number,
            command,
            started_ms,
            terminal: Cell::new(terminal),
            reaper,
            pace,
            note: RefCell::new(note),
            started: Instant::now(),
            ended: Cell::default(),
            positions: RefCell::default(),
            last_reader: Cell::default(),
            input_turn: AsyncMutex::default(),
            ring: RefCell::new(Ring::new(capacity, &self.room, self.may_use_disk.then_some(nameless_file))),
            screen: RefCell::new(screen),
            stdin: RefCell::new(stdin),
            exit: RefCell::default(),
            news: watch::Sender::new(()),
            readers: watch::Sender::new(0),
            sent: Cell::new(0),
            sent_on: Notify::new(),
            ending: watch::Sender::new(false),
            name,
        });
        let mut processes = self.by_number.borrow_mut();
        processes.retain(|_, other| other.name.is_none() || other.name != process.name);
        processes.insert(number, Rc::clone(&process));
        process
    }

    /// Returns a process.
    ///
    /// # Errors
    /// Not found if there is none of this number.
    pub(super) fn get(&self, number: u64) -> Result<Rc<Process>> {
        let process = self.by_number.borrow().get(&number).cloned();
        process.ok_or_else(|| not_found(format!("there is no process {number}; ended processes are not kept forever")))
    }

    /// Forgets a process.
    pub(super) fn forget(&self, number: u64) {
        self.by_number.borrow_mut().remove(&number);
    }

    /// Forgets those that ended first, beyond the numbers that are remembered.
    pub(super) fn forget_old(&self) {
        let mut processes = self.by_number.borrow_mut();
        let ended = processes.values().filter_map(|process| Some((process.ended.get()?, process.number)));
        let mut ended: Vec<(Instant, u64)> = ended.collect();
        ended.sort_unstable();
        let newer = (1..=ended.len()).rev();
        for ((at, number), remembered) in ended.iter().zip(newer) {
            let is_old = at.elapsed() > ENDED_KEPT && remembered > PROCESSES_ENDED_MIN;
            if !is_old && remembered <= PROCESSES_ENDED_MAX {
                break;
            }
            processes.remove(number);
        }
    }

    /// Describes all processes, by number.
    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        self.by_number.borrow().values().map(|process| process.info()).collect()
    }

    /// Describes the processes that have this process id, or had it, by number.
    pub(crate) fn of_pid(&self, pid: i32) -> Vec<ProcessInfo> {
        let processes = self.by_number.borrow();
        processes
            .values()
            .filter(|process| process.reaper.main.get() == Some(pid))
            .map(|process| process.info())
            .collect()
    }

    /// Remembers the size of a terminal that was changed.
    pub(crate) fn note(&self, control: Control) {
        let Action::Resize(size) = control.action else { return };
        let Some(process) = self.by_number.borrow().get(&control.command).cloned() else { return };
        process.terminal.set(Some(size));
        if let Some(screen) = process.screen.borrow_mut().as_mut() {
            screen.resize(size);
        }
    }
}

impl Process {
    pub(super) fn runs(&self) -> bool {
        self.exit.borrow().is_none()
    }

    pub(super) fn info(&self) -> ProcessInfo {
        let ring = self.ring.borrow();
        ProcessInfo {
            process: self.number,
            name: self.name.clone(),
            command: self.command.clone(),
            pid: self.reaper.main.get().filter(|_| self.runs()),
            ended_pid: self.reaper.main.get().filter(|_| !self.runs()),
            stdin_open: self.stdin.borrow().is_some(),
            note: self.note.borrow().clone(),
            terminal: self.terminal.get(),
            started_ms: self.started_ms,
            exit: self.exit.borrow().clone(),
            first: ring.first(),
            end: ring.end(),
            readers: *self.readers.borrow(),
        }
    }

    /// Counts a reader, which begins at `from`.
    pub(super) fn reader(self: &Rc<Self>, from: AttachFrom) -> Reader {
        self.readers.send_modify(|readers| *readers += 1);
        let number = self.last_reader.get() + 1;
        self.last_reader.set(number);
        let (first, end) = self.span();
        let position = match from {
            AttachFrom::Position(position) => position.max(first),
            AttachFrom::Screen if self.terminal.get().is_some() => end,
            AttachFrom::Screen => first,
        };
        self.positions.borrow_mut().insert(number, position);
        Reader { process: Rc::clone(self), news: self.news(), number }
    }

    /// Returns what changes with each output and at the end.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Returns the number of readers, as it changes.
    pub(super) fn readers(&self) -> watch::Receiver<usize> {
        self.readers.subscribe()
    }

    /// Keeps output.
    pub(super) fn append(&self, kind: Kind, bytes: &[u8]) {
        self.ring.borrow_mut().append(kind, bytes);
        if let Some(screen) = self.screen.borrow_mut().as_mut() {
            screen.show(bytes);
        }
        self.news.send_replace(());
    }

    /// Returns whether the process waits for readers.
    pub(super) fn has_pace(&self) -> bool {
        self.pace != Pace::Free
    }

    /// Returns whether a process that waits for its readers has written as much as they may be behind.
    pub(super) fn is_ahead(&self) -> bool {
        let ring = self.ring.borrow();
        let slowest = || self.positions.borrow().values().min().copied();
        let sent = match self.pace {
            Pace::Free => None,
            Pace::Fastest => Some(self.sent.get()),
            Pace::Slowest if self.last_reader.get() == 0 => (self.started.elapsed() < FIRST_READER_WAIT).then_some(0),
            Pace::Slowest => slowest(),
        };
        sent.is_some_and(|sent| ring.end() - sent.min(ring.end()) >= (ring.capacity() / 2) as u64)
    }

    /// Notes that a reader has been sent the output up to `position`.
    fn sent(&self, position: u64) {
        self.sent.set(self.sent.get().max(position));
        self.sent_on.notify_one();
    }

    pub(super) fn read(&self, position: u64) -> Read {
        self.ring.borrow().read(position)
    }

    /// Returns the positions of the oldest byte that is kept, and after the newest.
    pub(super) fn span(&self) -> (u64, u64) {
        let ring = self.ring.borrow();
        (ring.first(), ring.end())
    }

    /// Returns what draws the terminal's screen, if it has one; not more than a frame may hold.
    pub(super) fn drawn(&self) -> Option<Vec<u8>> {
        self.screen.borrow_mut().as_mut().map(Screen::drawn).filter(|drawn| drawn.len() <= PAYLOAD_BYTES_MAX)
    }

    /// Returns the exit once it has ended.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.exit.borrow().clone()
    }

    /// Notes the end.
    pub(super) fn ended(&self, exit: Exit) {
        *self.stdin.borrow_mut() = None;
        self.ended.set(Some(Instant::now()));
        drop(self.note.borrow_mut().take_if(|note| note.len() > PROCESS_NOTE_KEPT_BYTES_MAX));
        *self.exit.borrow_mut() = Some(exit);
        self.news.send_replace(());
    }

    /// Returns the way to its stdin.
    ///
    /// # Errors
    /// Conflict if it was started without one, or has ended.
    pub(super) fn stdin(&self) -> Result<mpsc::Sender<Fed>> {
        self.stdin.borrow().clone().ok_or_else(|| {
            conflict(format!("process {} has no open stdin; start it with one, and write before it ends", self.number))
        })
    }

    /// Refuses further input: its end was sent.
    pub(super) fn close_stdin(&self) {
        *self.stdin.borrow_mut() = None;
    }
}
