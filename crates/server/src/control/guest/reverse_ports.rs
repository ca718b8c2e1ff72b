//! Connections from boxes that are announced to callers, and taken.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::SandboxId;
use futures_util::StreamExt;
use parking_lot::Mutex;
use providers::{ByteStream, PortConnection, PortConnections};
use tokio_util::sync::CancellationToken;

/// Connections that were announced to callers and wait to be taken, by their numbers.
#[derive(Default)]
pub struct Announced {
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
}

pub(in crate::control) struct Waiting {
    pub(in crate::control) connection: Box<dyn PortConnection>,
    sandbox: SandboxId,
    port: u16,
    /// Token that ends with the listener.
    pub(in crate::control) ended: CancellationToken,
}

/// A port that is listened on. Dropping it resets its connections, open ones too.
pub struct Listener {
    connections: PortConnections,
    announced: Arc<Announced>,
    sandbox: SandboxId,
    port: u16,
    ended: CancellationToken,
}

/// A connection that a caller has taken.
pub struct Taken {
    pub output: ByteStream,
    /// Token that is cancelled when the port is no longer listened on.
    pub ended: CancellationToken,
}

impl Listener {
    pub(in crate::control) fn new(
        connections: PortConnections,
        announced: Arc<Announced>,
        sandbox: SandboxId,
        port: u16,
    ) -> Listener {
        Listener { connections, announced, sandbox, port, ended: CancellationToken::new() }
    }

    /// Returns the number of the next connection, which then waits to be taken; `None` once the box
    /// lists no more.
    pub async fn next(&mut self) -> Option<providers::Result<u64>> {
        let connection = match self.connections.next().await? {
            Ok(connection) => connection,
            Err(error) => return Some(Err(error)),
        };
        let number = self.announced.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sandbox, port, ended) = (self.sandbox.clone(), self.port, self.ended.clone());
        self.announced.waiting.lock().insert(number, Waiting { connection, sandbox, port, ended });
        Some(Ok(number))
    }

    /// Returns the number of the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a way to refuse connections of this listener.
    pub fn refuser(&self) -> Refuser {
        let (announced, sandbox) = (Arc::clone(&self.announced), self.sandbox.clone());
        Refuser { announced, sandbox, port: self.port }
    }
}

/// Way to refuse connections of a listener.
pub struct Refuser {
    announced: Arc<Announced>,
    sandbox: SandboxId,
    port: u16,
}

impl Refuser {
    /// Resets a connection that waits. One that does not is left alone, since its end and this may cross.
    pub fn refuse(&self, number: u64) {
        drop(self.announced.take(number, &self.sandbox, self.port));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.cancel();
        let ended = |waiting: &Waiting| waiting.ended.is_cancelled();
        let dropped: Vec<_> = self.announced.waiting.lock().extract_if(|_, waiting| ended(waiting)).collect();
        // Not while the lock is held.
        drop(dropped);
    }
}

impl Announced {
    /// Takes a connection that waits; `None` if it does not.
    pub(in crate::control) fn take(&self, number: u64, sandbox: &SandboxId, port: u16) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        let is_it = waiting.get(&number).is_some_and(|it| it.sandbox == *sandbox && it.port == port);
        if is_it { waiting.remove(&number) } else { None }
    }
}
