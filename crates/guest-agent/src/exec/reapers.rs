//! Children of the agent: one reaper for each command that still has processes. Any other process
//! that becomes a child of the agent has lost its reaper by force and is killed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::process::{WaitOptions, wait};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::process_tree::{ProcessTree, kill};
use crate::descriptor;
use crate::serve::Agent;

/// Option to wait also for children that were made to end with another signal than `SIGCHLD`.
const WAIT_ALL: WaitOptions = WaitOptions::from_bits_retain(libc::__WALL as u32);
/// Many times the size of the kernel's record of a signal.
const SIGNALS_BYTES: usize = 1024;

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
    /// Notified when a child without a reaper has appeared, or may have.
    strangers: Notify,
}

impl Reapers {
    /// Records a reaper that has just been forked.
    pub(crate) fn add(&self, pid: i32) -> Rc<Reaper> {
        let reaper =
            Rc::new(Reaper { pid, memory_killed: Cell::new(false), main: Cell::new(None), gone: Cell::new(false) });
        self.by_pid.borrow_mut().insert(pid, Rc::clone(&reaper));
        reaper
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
    fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WAIT_ALL) {
            let reaper = self.by_pid.borrow_mut().remove(&pid.as_raw_nonzero().get());
            if let Some(reaper) = &reaper {
                reaper.gone.set(true);
            }
            // A reaper that exits by itself has no children left.
            if reaper.is_none() || !status.exited() {
                self.strangers.notify_one();
            }
        }
    }
}

/// Reaps whenever a child has ended.
pub(crate) async fn reap(agent: Rc<Agent>) -> std::io::Result<()> {
    let signals = descriptor::readable(super::spawn::child_signals()?)?;
    loop {
        let mut guard = signals.readable().await?;
        let mut drained = [0; SIGNALS_BYTES];
        let read = |fd: &AsyncFd<OwnedFd>| Ok(rustix::io::read(fd.get_ref(), &mut drained[..])?);
        if let Ok(read) = guard.try_io(read) {
            read?;
            agent.reapers.reap();
        }
    }
}

/// Kills processes that have lost their reaper.
pub(crate) async fn kill_strangers(agent: Rc<Agent>) {
    loop {
        agent.reapers.strangers.notified().await;
        kill(&agent, &ProcessTree::Orphans).await;
    }
}

/// Ends every command, for an agent that is not process 1 and whose own end would leave them
/// running.
pub(crate) async fn kill_all(agent: &Agent) {
    for reaper in agent.reapers.all() {
        kill(agent, &ProcessTree::Command(reaper)).await;
    }
    agent.reapers.reap();
    kill(agent, &ProcessTree::Orphans).await;
}
