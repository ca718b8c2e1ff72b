//! Changes of the ports that processes of the box listen on.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::{PORT_CHANGES_BURST, WatchPorts};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep};

use super::listening::of_box;
use crate::agent::Agent;
use crate::sockets::Socket;

/// Shortest pause after a list of the kernel, in multiples of the time that it took: a box takes no
/// more than a thousandth of a processor for its lists, however costly the kernel makes them.
const PAUSE_PER_LIST: u32 = 1000;
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Lines of changes, until a later receiver takes over.
#[derive(Debug)]
pub(crate) struct Changes {
    rows: mpsc::Receiver<Bytes>,
    task: AbortHandle,
}

impl Changes {
    /// Returns the next line; `None` if there is another receiver.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.rows.poll_recv(cx)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Begins to report changes, and ends an earlier receiver.
pub(crate) fn watch(agent: &Rc<Agent>, request: WatchPorts) -> Changes {
    // There is room for all that can be reported at once, so a look never waits.
    let (sender, rows) = mpsc::channel(PORT_CHANGES_BURST as usize);
    let every = Duration::from_millis(request.interval_ms);
    let task = spawn_local(look(Rc::clone(agent), every, sender)).abort_handle();
    if let Some(earlier) = agent.known_ports.task.replace(Some(task.clone())) {
        earlier.abort();
    }
    Changes { rows, task }
}

async fn look(agent: Rc<Agent>, every: Duration, to: mpsc::Sender<Bytes>) {
    loop {
        let begun = processor_time();
        // Without a list of the kernel nothing is known to have changed.
        let sockets = agent.sockets.listening().ok();
        let took = processor_time().saturating_sub(begun);
        report(&agent, sockets, &to);
        let is_done = agent.known_ports.known.borrow().is_empty();
        if is_done && !agent.reapers.has_children() {
            // Nothing runs that could listen.
            agent.reapers.added.notified().await;
        }
        sleep(every.max(took.saturating_mul(PAUSE_PER_LIST).min(PAUSE_MAX))).await;
    }
}

/// Returns the time that this thread, the agent's only one, has had on a processor.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Reports as many changes as there may be now.
fn report(agent: &Agent, sockets: Option<Vec<Socket>>, to: &mpsc::Sender<Bytes>) {
    let mut known = agent.known_ports.known.borrow_mut();
    if let Some(mut sockets) = sockets {
        sockets.retain(|socket| !agent.is_own(socket.address, socket.port));
        known.learn(sockets, |new| of_box(agent, new));
    }
    let most = known.allowance.grants(Instant::now()).min(to.capacity());
    for change in known.changes(most) {
        let Ok(mut row) = serde_json::to_vec(&change) else { continue };
        row.push(b'\n');
        // There is room, unless the receiver has gone.
        if to.try_send(row.into()).is_err() {
            return;
        }
        known.report(change);
    }
}
