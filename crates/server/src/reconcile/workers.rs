//! This server's own heartbeat and leases. Apart from the other reconcilers,
//! which may wait for a provider.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::interval;
use crate::control::Control;

/// Runs until told to stop.
pub async fn run(control: Arc<Control>, stop: CancellationToken) {
    let mut beat = interval(control.policy().leases.heartbeat_interval);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = beat.tick() => {}
        }
        if let Err(error) = control.beat_own().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the heartbeat failed and is tried again");
        }
    }
}
