//! Waiting for the agent's children that have ended. A child that is no reaper has lost its reaper by
//! force and is killed.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use tokio::io::unix::AsyncFd;

use super::process_tree::{ProcessTree, kill};
use crate::agent::Agent;
use crate::descriptor;

/// Many times the size of the kernel's record of a signal.
const SIGNALS_BYTES: usize = 1024;

/// Blocks the signal that a child has ended, and returns the descriptor that it arrives on.
///
/// # Errors
/// The kernel's, or the runtime's that watches the descriptor.
pub(crate) fn child_signals() -> std::io::Result<AsyncFd<OwnedFd>> {
    descriptor::readable(super::spawn::child_signals()?)
}

/// Reaps whenever a child has ended.
pub(crate) async fn reap(agent: Rc<Agent>, signals: AsyncFd<OwnedFd>) -> std::io::Result<()> {
    loop {
        let mut guard = signals.readable().await?;
        let mut drained = [0; SIGNALS_BYTES];
        if let Ok(read) = guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut drained[..])?)) {
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
