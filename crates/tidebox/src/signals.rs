//! Being told to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Result};

/// Listens for the signals by which a person or a supervisor ends a program.
/// From its making on they no longer end this one by themselves.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Starts to listen.
    pub fn listen() -> Result<Signals> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("signals cannot be listened for", &error));
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal, as the exit code that tells of it. Safe to cancel.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 128 + 2,
            _ = self.terminate.recv() => 128 + 15,
            _ = self.hang_up.recv() => 128 + 1,
        }
    }
}
