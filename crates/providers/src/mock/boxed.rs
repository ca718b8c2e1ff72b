//! A box in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use domain::SandboxId;
use guest_protocol::CONSOLE_LINES_MAX;
use guest_protocol::output::Room;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::faults::Faults;
use super::fs::{FileSystem, Now};
use crate::kept_processes::Processes;
use crate::{Result, Spec};

/// Size of the file system if the request sets no limit, in bytes.
const DISK_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;
/// The longest console line, in bytes.
const LINE_BYTES_MAX: usize = 4096;

pub(super) struct Boxed {
    fs: Mutex<FileSystem>,
    console: Mutex<Console>,
    processes: Arc<Processes>,
    faults: Faults,
    stops: AtomicU32,
    execs: AtomicU32,
    snapshots: AtomicU32,
    /// Deadline that it was last given.
    deadline: Mutex<Option<Duration>>,
    dead: CancellationToken,
    tasks: TaskTracker,
    /// Slots; `None` for a box that was not made to hold any.
    slots: Option<Mutex<BTreeMap<SandboxId, Arc<Boxed>>>>,
}

impl Boxed {
    /// Makes a box with a copy of the files of a snapshot, or an initial file system.
    pub(super) fn new(
        spec: &Spec,
        files: Option<&FileSystem>,
        faults: Faults,
        now: Now,
        tasks: TaskTracker,
    ) -> Result<Boxed> {
        let bytes_max = match spec.resources.disk_mb {
            0 => DISK_BYTES_DEFAULT,
            disk_mb => u64::from(disk_mb) * 1024 * 1024,
        };
        let (dead, room) = (CancellationToken::new(), Room::of(spec.resources.memory_mb));
        let processes = Processes::new(room, Arc::clone(&now), 0, dead.clone(), tasks.clone());
        Ok(Boxed {
            processes: Arc::new(processes),
            fs: Mutex::new(match files {
                Some(files) => files.copy(bytes_max)?,
                None => FileSystem::new(bytes_max, now)?,
            }),
            console: Mutex::default(),
            faults,
            stops: AtomicU32::new(0),
            execs: AtomicU32::new(0),
            snapshots: AtomicU32::new(0),
            deadline: Mutex::default(),
            dead,
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
        let dead = host.dead.child_token();
        Boxed { processes: Arc::new(self.processes.ending_with(dead.clone())), dead, ..self }
    }

    /// Returns the slots, or `None` if the box was not made to hold any.
    pub(super) fn slots(&self) -> Option<MutexGuard<'_, BTreeMap<SandboxId, Arc<Boxed>>>> {
        self.slots.as_ref().map(Mutex::lock)
    }

    /// Returns a token that is cancelled when the box has ended.
    pub(super) fn dead(&self) -> &CancellationToken {
        &self.dead
    }

    /// Returns the deadline that it was last given, from then.
    pub(super) fn deadline(&self) -> MutexGuard<'_, Option<Duration>> {
        self.deadline.lock()
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

    /// Counts a command, and returns whether it has to fail.
    pub(super) fn is_exec_refused(&self) -> bool {
        self.execs.fetch_add(1, Ordering::Relaxed) < self.faults.exec_fail
    }

    /// Counts a snapshot, and returns whether it has to fail.
    pub(super) fn is_snapshot_refused(&self) -> bool {
        self.snapshots.fetch_add(1, Ordering::Relaxed) < self.faults.snapshot_fail
    }

    pub(super) fn fs(&self) -> MutexGuard<'_, FileSystem> {
        self.fs.lock()
    }

    pub(super) fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// Returns the console, to which background processes write.
    pub(super) fn console(&self) -> MutexGuard<'_, Console> {
        self.console.lock()
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
    pub(super) fn newest(&self, lines: usize) -> Vec<String> {
        let partial = (!self.partial.is_empty()).then(|| String::from_utf8_lossy(&self.partial).into_owned());
        let all = self.lines.len() + usize::from(partial.is_some());
        self.lines.iter().cloned().chain(partial).skip(all.saturating_sub(lines)).collect()
    }
}
