//! End of the service in two stages. The soft stage stops listening, refuses the spawns that
//! wait, and lets the work under way finish within bounds. A second signal begins the hard stage:
//! the process ends as in a crash, and its next start finishes what was under way.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use domain::{State, StopReason};
use futures_util::{StreamExt, stream};
use providers::Chain;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::App;
use crate::control::Sandbox;
use crate::control::{self, Control};

/// Longest time for work that outlives its request.
const FINISH_MAX: Duration = Duration::from_secs(10);
/// Longest time for the removal of all boxes.
const DESTROY_MAX: Duration = Duration::from_secs(60);
/// The most boxes that are removed at once.
const DESTROYS_AT_ONCE: usize = 16;

/// SIGTERM or SIGINT.
pub struct StopSignal(io::Result<[Signal; 2]>);

impl StopSignal {
    /// Listens from the call on, so that a signal right after "ready" finds its handler.
    pub fn listen() -> Self {
        let terminate = signal(SignalKind::terminate());
        Self(terminate.and_then(|terminate| Ok([terminate, signal(SignalKind::interrupt())?])))
    }

    /// Waits for the signal.
    pub async fn received(self) {
        let Ok([mut terminate, mut interrupt]) = self.0 else {
            // Without handlers, the signals end the process at once, as they would anyway.
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// A signal that came before the soft stage had ended.
#[derive(Debug)]
pub struct SecondSignal;

/// End of the service, in two stages.
#[derive(Debug, Clone, Copy)]
pub struct Shutdown {
    /// True to remove every sandbox.
    pub destroy_all: bool,
}

impl Shutdown {
    /// Ends the service, softly unless a signal comes.
    ///
    /// # Errors
    /// [`SecondSignal`] if it came; the work under way is dropped then.
    pub async fn run(self, app: App) -> Result<(), SecondSignal> {
        tracing::info!("stopping; another signal stops the server at once");
        let second = StopSignal::listen();
        tokio::select! {
            () = self.soft(app) => Ok(()),
            () = second.received() => Err(SecondSignal),
        }
    }

    async fn soft(self, mut app: App) {
        app.stop().await;
        let control = &app.control;
        if self.destroy_all {
            destroy_all(control).await;
        }
        control.empty_warm_pool().await;
        control.tasks().close();
        if let Err(error) = control.store_key_uses().await {
            tracing::warn!(error = %Chain(&error), "cannot store when keys were last used");
        }
        if let Err(error) = control.flush_refusals().await {
            tracing::warn!(error = %Chain(&error), "some refused keys are not counted");
        }
        if tokio::time::timeout(FINISH_MAX, finish(control)).await.is_err() {
            tracing::warn!("some work did not finish in time; the next start finishes it");
        }
        control.store().close().await;
    }
}

/// Destroys all sandboxes, [`DESTROYS_AT_ONCE`] at once and for no longer than [`DESTROY_MAX`].
async fn destroy_all(control: &Arc<Control>) {
    let states = [State::Creating, State::Running, State::Paused, State::Failed];
    let rows = stream::iter(states).flat_map(|state| control.in_state(state));
    let destroy = async |row: control::Result<Sandbox>| {
        let destroyed = async { control.destroy_because(&row?.id, StopReason::Requested).await };
        if let Err(error) = destroyed.await {
            tracing::warn!(error = %Chain(&error), "leaving a sandbox for the next start");
        }
    };
    let all = rows.for_each_concurrent(DESTROYS_AT_ONCE, destroy);
    if tokio::time::timeout(DESTROY_MAX, all).await.is_err() {
        tracing::warn!("not all sandboxes could be destroyed within {} s; the others remain", DESTROY_MAX.as_secs());
    }
}

/// Waits for the work that outlives its request, and for providers that still remove files.
async fn finish(control: &Control) {
    if let Some(images) = control.registry().images() {
        // The next start continues the pulls.
        images.close().await;
    }
    control.tasks().wait().await;
    for entry in control.registry().entries() {
        entry.provider.idle().await;
    }
}

#[cfg(test)]
mod test;
