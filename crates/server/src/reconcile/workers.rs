//! This server's own heartbeat and leases, and the boxes of other workers. Separate from the
//! other reconcilers, which therefore never wait for a worker that does not answer.

use std::sync::Arc;
use std::time::Duration;

use domain::WorkerId;
use providers::Chain;
use tokio_util::sync::CancellationToken;

use super::job::interval;
use super::runtimes::{INVENTORY_EVERY, Trouble};
use crate::control::Control;

/// Pause between two probes of a worker.
const PROBE_EVERY: Duration = Duration::from_millis(1500);
/// Longest wait for the answer to a probe.
const PROBE_WAIT: Duration = Duration::from_secs(2);
/// Unanswered probes in a row after which a worker counts as silent: one alone may be a busy
/// moment.
const MISSES_MAX: u32 = 2;

/// Runs until cancelled.
pub async fn run(control: Arc<Control>, stop: CancellationToken) {
    let others = control.other_workers().iter().cloned().map(|worker| {
        let looked_after = look_after(&control, worker.clone());
        futures_util::future::join(looked_after, probe(&control, worker))
    });
    tokio::select! {
        () = stop.cancelled() => {}
        () = beat(&control) => {}
        // `join_all` ends at once if there are no other workers.
        () = async { futures_util::future::join_all(others).await; std::future::pending().await } => {}
    }
}

/// Compares the boxes of another worker with the stored sandboxes, at intervals.
async fn look_after(control: &Arc<Control>, worker: WorkerId) {
    let mut look = interval(INVENTORY_EVERY);
    let mut trouble = Trouble::default();
    loop {
        look.tick().await;
        trouble.tell(worker.as_str(), control.reconcile_worker(&worker).await);
    }
}

/// Finds out at intervals whether another worker answers, so that none that was killed or hangs
/// counts as ready, or gets a sandbox, until its heartbeats are missed.
async fn probe(control: &Control, worker: WorkerId) {
    let remote_workers = control.registry().remote_workers();
    let mut look = interval(PROBE_EVERY);
    let mut misses = 0;
    loop {
        look.tick().await;
        let Ok(Some(client)) = remote_workers.client(&worker, None) else { return };
        match client.ping(PROBE_WAIT).await {
            Ok(()) => misses = 0,
            Err(error) => {
                misses += 1;
                if misses == MISSES_MAX {
                    tracing::warn!(%worker, error = %Chain(&error), "worker does not answer; not placing sandboxes on it");
                }
            }
        }
        remote_workers.note(&worker, misses < MISSES_MAX);
    }
}

async fn beat(control: &Control) {
    let mut beat = interval(control.policy().leases.heartbeat_interval);
    loop {
        beat.tick().await;
        if let Err(error) = control.beat_own().await {
            tracing::warn!(error = %Chain(&error), "the heartbeat failed; trying again");
        }
    }
}
