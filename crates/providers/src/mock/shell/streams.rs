//! Input and output of the commands in a mock box.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream};
use tokio::sync::{Mutex, mpsc};

use super::state::{Halt, Run};
use crate::{ByteStream, OutputEvent};

/// The most pieces of output that wait for a reader. A command waits for room.
pub(super) const PIECES_MAX: usize = 16;

/// Destination of a command's output.
#[derive(Clone)]
pub(super) enum Sink {
    /// The output of the whole command: the run, and the event for a piece of it.
    Reader(Arc<Run>, fn(Bytes) -> OutputEvent),
    Pipe(mpsc::Sender<Bytes>),
    File(Arc<Run>, String),
}

impl Sink {
    /// Writes all of `bytes`, at the speed of the reader.
    pub(super) async fn write(&self, bytes: impl Into<Bytes>) -> Result<(), Halt> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Sink::Reader(run, event) => run.output(*event, bytes).await,
            Sink::Pipe(pipe) => pipe.send(bytes).await.map_err(|_| Halt::Broken),
            Sink::File(run, path) => {
                let appended = run.inside.fs().append(path, &bytes);
                tokio::task::yield_now().await;
                appended.map_err(|_| Halt::Full)
            }
        }
    }
}

/// Input of a command. Clones share the rest of it.
#[derive(Clone)]
pub(super) struct Source(Arc<Mutex<(Bytes, BoxStream<'static, Bytes>)>>);

impl Source {
    fn new(first: Bytes, pieces: BoxStream<'static, Bytes>) -> Source {
        Source(Arc::new(Mutex::new((first, pieces.fuse().boxed()))))
    }

    pub(super) fn bytes(bytes: Bytes) -> Source {
        Source::new(bytes, stream::empty().boxed())
    }

    /// Makes the input of a stream, up to its end or failure.
    pub(super) fn stream(stream: ByteStream) -> Source {
        Source::new(Bytes::new(), stream.scan((), |(), piece| ready(piece.ok())).boxed())
    }

    /// Makes a pipe, from its end for writing to that for reading.
    pub(super) fn pipe() -> (Sink, Source) {
        let (sender, mut receiver) = mpsc::channel(PIECES_MAX);
        let pieces = stream::poll_fn(move |context| receiver.poll_recv(context));
        (Sink::Pipe(sender), Source::new(Bytes::new(), pieces.boxed()))
    }

    /// Reads the next bytes, at most `bytes_max`. Returns `None` at the end.
    pub(super) async fn read(&self, bytes_max: usize) -> Option<Bytes> {
        let mut state = self.0.lock().await;
        let (left, pieces) = &mut *state;
        while left.is_empty() {
            *left = pieces.next().await?;
        }
        Some(left.split_to(left.len().min(bytes_max)))
    }
}

#[derive(Clone)]
pub(super) struct Io {
    pub(super) stdin: Source,
    pub(super) stdout: Sink,
    pub(super) stderr: Sink,
}

/// Writes an error message to stderr and returns the exit code.
pub(super) async fn complain(io: &Io, message: &str, code: i32) -> i32 {
    // The command fails with the same code if the message cannot be written.
    let _ = io.stderr.write(format!("{message}\n")).await;
    code
}
