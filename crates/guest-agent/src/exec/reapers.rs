//! Reapers, the children of the agent: one for each command that still has processes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, wait, waitid};
use tokio::sync::Notify;

/// Option to wait also for children that were made to end with another signal than `SIGCHLD`.
const WAIT_ALL: WaitOptions = WaitOptions::from_bits_retain(libc::__WALL as u32);

/// The process that supervises a command and all its descendants.
#[derive(Debug)]
pub(crate) struct Reaper {
    pub(crate) pid: i32,
    /// True once the watchdog has killed one of its processes.
    pub(crate) memory_killed: Cell<bool>,
    /// Pid of the command's process, once it is known.
    pub(super) main: Cell<Option<i32>>,
    gone: Cell<bool>,
}

impl Reaper {
    /// Returns whether it has ended, so that its pid may mean another process.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

/// Reapers that have not ended, by pid.
#[derive(Debug, Default)]
pub(crate) struct Reapers {
    by_pid: RefCell<HashMap<i32, Rc<Reaper>>>,
    /// True once a reaper was ended by force, so that its descendants may be children of the agent.
    has_lost_one: Cell<bool>,
    /// Notified when a reaper is there.
    pub(crate) added: Notify,
    /// Notified when a child without a reaper has appeared, or may have.
    pub(super) strangers: Notify,
}

impl Reapers {
    /// Records a reaper that has just been forked.
    pub(crate) fn add(&self, pid: i32) -> Rc<Reaper> {
        let reaper =
            Rc::new(Reaper { pid, memory_killed: Cell::new(false), main: Cell::new(None), gone: Cell::new(false) });
        self.by_pid.borrow_mut().insert(pid, Rc::clone(&reaper));
        self.added.notify_one();
        reaper
    }

    /// Returns whether the agent has a child. All other processes of the box are descendants of its
    /// children.
    pub(crate) fn has_children(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let all = WaitIdOptions::from_bits_retain(WAIT_ALL.bits());
        !self.is_empty() || !matches!(waitid(WaitId::All, options | all), Err(Errno::CHILD))
    }

    pub(crate) fn contains(&self, pid: i32) -> bool {
        self.by_pid.borrow().contains_key(&pid)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_pid.borrow().is_empty()
    }

    pub(crate) fn all(&self) -> Vec<Rc<Reaper>> {
        self.by_pid.borrow().values().cloned().collect()
    }

    /// Waits for every child that has ended.
    pub(super) fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WAIT_ALL) {
            let reaper = self.by_pid.borrow_mut().remove(&pid.as_raw_nonzero().get());
            if let Some(reaper) = &reaper {
                reaper.gone.set(true);
            }
            // A reaper that exits by itself has no children left. Without subreapers, as in gVisor, its
            // descendants are children of the agent: these have lost nothing, and one that ends says
            // nothing about the others.
            if reaper.is_some() && !status.exited() {
                self.has_lost_one.set(true);
            }
            if self.has_lost_one.get() {
                self.strangers.notify_one();
            }
        }
    }
}
