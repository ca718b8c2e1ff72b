//! Work of an agent after its first answer, because a spawn waits for that answer.

use std::rc::Rc;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::agent::Agent;
use crate::syscall_queue;

/// Time after which the agent settles without a request: the first answer takes less.
const PAUSE: Duration = Duration::from_millis(5);

impl Agent {
    /// Completes the start. Must come before anything of the box runs; further calls do nothing.
    pub(crate) fn settle(&self) {
        if self.is_settled.replace(true) {
            return;
        }
        if let Some(size) = &self.size {
            start_on(size.processors());
        }
        if let Some(turns) = self.turns.take()
            && syscall_queue::give(turns).is_err()
        {
            // Without the thread, calls of programs would wait for ever.
            std::process::exit(1);
        }
        if self.boot.holds_slots {
            return;
        }
        // Before the first command, which could take the port.
        if let Err(error) = self.egress.begin() {
            self.console.push(format!("tidebox: the proxy of the sandbox cannot listen: {error}"));
        }
        if let Some(certificate) = &self.boot.trust
            && let Err(failure) = self.trust(certificate)
        {
            self.console.push(format!("tidebox: {}", failure.message));
        }
    }

    /// Settles when the tasks that are ready have run, of which one writes an answer. The server has work of
    /// its own then, and a command that follows need not wait.
    pub(crate) async fn settle_next(self: Rc<Self>) {
        tokio::task::yield_now().await;
        self.settle();
    }

    /// Settles soon, where no request comes.
    pub(crate) async fn settle_soon(self: Rc<Self>) {
        tokio::time::sleep(PAUSE).await;
        self.settle();
    }
}

/// Starts the processes of the box on these processors. They may leave them: a control group or the share
/// of all boxes bounds what they take. Where that is refused, the box sees more processors than it has.
fn start_on(processors: &[u32]) {
    let mut chosen = CpuSet::new();
    for number in processors {
        // A number that the set cannot hold is left out.
        if (*number as usize) < CpuSet::MAX_CPU {
            chosen.set(*number as usize);
        }
    }
    let _ = sched_setaffinity(None, &chosen);
}
