//! File work that takes long, on a thread of its own: the agent's first thread serves all other
//! requests meanwhile.
//!
//! The kernel keeps the ids of each thread apart, so the thread acts as the user while the first one
//! stays what it is.

use std::convert::Infallible;
use std::io::Read;
use std::task::{Context, Poll};
use std::thread::Builder;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::as_user::Actor;
use crate::failure::{Result, exhausted, internal};

/// Maximum number of such threads at once. Further work waits.
pub(crate) const LONG_WORK_MAX: usize = 16;
/// Size of a thread's stack.
const STACK_BYTES: usize = 512 * 1024;
/// Pieces that wait to be sent.
const QUEUE_PIECES: usize = 2;
/// Size at which bytes are sent.
const PIECE_BYTES: usize = 64 * 1024;
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

    /// Sends bytes, together with others.
    pub(super) fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), Left> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.rows.len().min(PIECE_BYTES)));
            self.rows.extend_from_slice(now);
            bytes = rest;
            if self.rows.len() >= PIECE_BYTES {
                self.flush()?;
            }
        }
        Ok(())
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
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        self.receiver.poll_recv(cx)
    }
}

/// Receiving end of a request's body, in its thread.
#[derive(Debug)]
pub(crate) struct Input {
    receiver: mpsc::Receiver<Result<Bytes, Cut>>,
    piece: Bytes,
}

/// The body has broken off.
#[derive(Debug, Clone, Copy)]
struct Cut;

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(Cut)) => return Err(std::io::ErrorKind::ConnectionAborted.into()),
            }
        }
        let part = self.piece.split_to(buffer.len().min(self.piece.len()));
        for (to, from) in buffer.iter_mut().zip(part.iter()) {
            *to = *from;
        }
        Ok(part.len())
    }
}

/// Does work on the body of a request, on a thread, as `actor`.
///
/// # Errors
/// Those of `work`; exhausted if the box has no process left for the thread.
pub(crate) async fn feed<T: Send + 'static>(
    actor: Actor,
    permit: OwnedSemaphorePermit,
    mut body: Incoming,
    work: impl FnOnce(Input) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = mpsc::channel(QUEUE_PIECES);
    let (finish, finished) = oneshot::channel();
    spawn(move || {
        let done = actor.at_once(|| work(Input { receiver, piece: Bytes::new() }));
        // A caller that has left does not need it.
        let _ = finish.send(done);
        drop(permit);
    })?;
    let pass_on = async {
        while let Some(frame) = body.frame().await {
            let piece = match frame.map(|frame| frame.into_data()) {
                Ok(Ok(piece)) => Ok(piece),
                Ok(Err(_)) => continue,
                Err(_) => Err(Cut),
            };
            if sender.send(piece).await.is_err() {
                break;
            }
        }
        drop(sender);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        done = finished => done.unwrap_or_else(|_| Err(internal("the work was cancelled"))),
        never = pass_on => match never {},
    }
}

/// Starts a thread.
///
/// # Errors
/// Exhausted if the box has no process left for it.
pub(super) fn spawn(act: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = Builder::new().name("tidebox-files".to_owned()).stack_size(STACK_BYTES).spawn(act);
    thread.map(drop).map_err(|error| exhausted(format!("the sandbox cannot start another process: {error}")))
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
    spawn(move || {
        let mut output = Output { sender, rows: Vec::new() };
        if let Err(failure) = actor.at_once(|| work(&mut output)) {
            // A caller that has left does not need it.
            let _ = output.sender.blocking_send(Err(failure));
        }
        drop(permit);
    })?;
    match receiver.recv().await {
        Some(Ok(_)) => Ok(Pieces { receiver }),
        Some(Err(failure)) => Err(failure),
        None => Err(internal("the work was cancelled")),
    }
}
