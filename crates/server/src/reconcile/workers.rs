//! This server's own heartbeat and leases, and what other workers hold. Apart
//! from the other reconcilers: nobody waits for a worker that does not answer.

use std::sync::Arc;

use domain::WorkerId;
use providers::Chain;
use tokio_util::sync::CancellationToken;

use super::interval;
use super::runtimes::{INVENTORY_EVERY, Trouble};
use crate::control::Control;

/// Runs until told to stop.
pub async fn run(control: Arc<Control>, stop: CancellationToken) {
    let others = control.other_workers().iter().cloned().map(|worker| look_after(&control, worker));
    tokio::select! {
        () = stop.cancelled() => {}
        () = beat(&control) => {}
        // Ends at once if there are none.
        () = async { futures_util::future::join_all(others).await; std::future::pending().await } => {}
    }
}

/// Compares again and again what another worker holds with what is stored.
async fn look_after(control: &Arc<Control>, worker: WorkerId) {
    let mut look = interval(INVENTORY_EVERY);
    let mut trouble = Trouble::default();
    loop {
        look.tick().await;
        trouble.tell(worker.as_str(), control.reconcile_worker(&worker).await);
    }
}

async fn beat(control: &Control) {
    let mut beat = interval(control.policy().leases.heartbeat_interval);
    loop {
        beat.tick().await;
        if let Err(error) = control.beat_own().await {
            tracing::warn!(error = %Chain(&error), "the heartbeat failed and is tried again");
        }
    }
}
