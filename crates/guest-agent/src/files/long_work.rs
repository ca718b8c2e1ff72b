//! File work that takes long, on a thread of its own: the agent's first thread serves all other
//! requests meanwhile.
//!
//! The kernel keeps the ids of each thread apart, so the thread acts as the user while the first one
//! stays what it is.

use std::task::{Context, Poll};
use std::thread::Builder;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::acting::Actor;
use crate::failure::{Result, exhausted, internal};

/// Maximum number of such threads at once. Further work waits.
pub(crate) const LONG_WORK_MAX: usize = 16;
/// Size of a thread's stack.
const STACK_BYTES: usize = 512 * 1024;
/// Pieces that wait to be sent.
const QUEUE_PIECES: usize = 2;
/// Size at which rows are sent, in bytes.
const ROWS_BYTES: usize = 16 * 1024;

/// Sending end of an answer, in its thread.
#[derive(Debug)]
pub(crate) struct Output {
    sender: mpsc::Sender<Result<Bytes>>,
    rows: Vec<u8>,
}

/// The caller has left, so that the work is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left;

impl Output {
    /// Sends the head of the answer. Failures before it become the answer's status.
    pub(super) fn begin(&self) -> Result<(), Left> {
        self.sender.blocking_send(Ok(Bytes::new())).map_err(|_| Left)
    }

    /// Sends a row of JSON, together with others.
    pub(super) fn row(&mut self, row: &impl serde::Serialize) -> Result<(), Left> {
        if serde_json::to_writer(&mut self.rows, row).is_err() {
            return Err(Left);
        }
        self.rows.push(b'\n');
        if self.rows.len() < ROWS_BYTES { Ok(()) } else { self.flush() }
    }

    /// Sends the rows that wait.
    pub(super) fn flush(&mut self) -> Result<(), Left> {
        let rows = Bytes::from(std::mem::take(&mut self.rows));
        self.sender.blocking_send(Ok(rows)).map_err(|_| Left)
    }

    /// Returns an error once the caller has left.
    pub(super) fn check(&self) -> Result<(), Left> {
        if self.sender.is_closed() { Err(Left) } else { Ok(()) }
    }
}

/// Receiving end of an answer. Dropping it ends the work.
#[derive(Debug)]
pub(crate) struct Pieces {
    receiver: mpsc::Receiver<Result<Bytes>>,
}

impl Pieces {
    /// Returns the next piece; `None` at the end.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        let piece = self.receiver.poll_recv(cx);
        piece.map(|piece| piece.map(|piece| piece.map_err(|failure| std::io::Error::other(failure.message))))
    }
}

/// Begins work on a thread, as `actor`, and waits for the head of its answer.
///
/// # Errors
/// Those of `work` before its head; exhausted if the box has no process left for the thread.
pub(crate) async fn begin(
    actor: Actor,
    permit: OwnedSemaphorePermit,
    work: impl FnOnce(&mut Output) -> Result<()> + Send + 'static,
) -> Result<Pieces> {
    let (sender, mut receiver) = mpsc::channel(QUEUE_PIECES);
    let act = move || {
        let mut output = Output { sender, rows: Vec::new() };
        if let Err(failure) = actor.at_once(|| work(&mut output)) {
            // A caller that has left does not need it.
            let _ = output.sender.blocking_send(Err(failure));
        }
        drop(permit);
    };
    let thread = Builder::new().name("tidebox-files".to_owned()).stack_size(STACK_BYTES).spawn(act);
    thread.map_err(|error| exhausted(format!("the box has no room for another process: {error}")))?;
    match receiver.recv().await {
        Some(Ok(_)) => Ok(Pieces { receiver }),
        Some(Err(failure)) => Err(failure),
        None => Err(internal("the work was given up")),
    }
}
