//! Input and output of the commands in a mock box.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::mock::boxed::Boxed;
use crate::{ByteStream, OutputEvent};

/// Reason why a command cannot write on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Halt {
    /// The reader is gone: `SIGPIPE`.
    Broken,
    Full,
}

/// Output of a command: its reader until the command has ended, and the console afterwards.
pub(super) struct Outlet {
    pub(super) events: mpsc::Sender<OutputEvent>,
    /// Cancelled when the command has ended. Its children's output then goes to the console.
    pub(super) ended: CancellationToken,
    pub(super) inside: Arc<Boxed>,
}

impl Outlet {
    async fn write(&self, bytes: Bytes, is_error: bool) -> Result<(), Halt> {
        let Some(permit) = self.ended.run_until_cancelled(self.events.reserve()).await else {
            self.inside.console().push(&bytes);
            // A loop that writes to the console never waits for anything else.
            tokio::task::yield_now().await;
            return Ok(());
        };
        let event = if is_error { OutputEvent::Stderr(bytes) } else { OutputEvent::Stdout(bytes) };
        permit.map_err(|_| Halt::Broken)?.send(event);
        Ok(())
    }
}

/// Destination of a command's output.
#[derive(Clone)]
pub(super) enum Sink {
    Stdout(Arc<Outlet>),
    Stderr(Arc<Outlet>),
    Pipe(mpsc::Sender<Bytes>),
    File(Arc<Boxed>, String),
    Null,
}

impl Sink {
    /// Writes all of `bytes`, at the speed of the reader.
    pub(super) async fn write(&self, bytes: impl Into<Bytes>) -> Result<(), Halt> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Sink::Stdout(outlet) => outlet.write(bytes, false).await,
            Sink::Stderr(outlet) => outlet.write(bytes, true).await,
            Sink::Pipe(pipe) => pipe.send(bytes).await.map_err(|_| Halt::Broken),
            Sink::File(inside, path) => {
                let appended = inside.fs().append(path, &bytes);
                tokio::task::yield_now().await;
                appended.map_err(|_| Halt::Full)
            }
            Sink::Null => {
                tokio::task::yield_now().await;
                Ok(())
            }
        }
    }
}

enum Origin {
    Empty,
    Stream(ByteStream),
    Pipe(mpsc::Receiver<Bytes>),
}

/// Input of a command. Clones share the rest of it.
#[derive(Clone)]
pub(super) struct Source(Arc<Mutex<(Bytes, Origin)>>);

impl Source {
    fn new(first: Bytes, origin: Origin) -> Source {
        Source(Arc::new(Mutex::new((first, origin))))
    }

    pub(super) fn bytes(bytes: Bytes) -> Source {
        Source::new(bytes, Origin::Empty)
    }

    pub(super) fn stream(stream: Option<ByteStream>) -> Source {
        Source::new(Bytes::new(), stream.map_or(Origin::Empty, Origin::Stream))
    }

    pub(super) fn pipe(pipe: mpsc::Receiver<Bytes>) -> Source {
        Source::new(Bytes::new(), Origin::Pipe(pipe))
    }

    /// Reads the next bytes, at most `bytes_max`. Returns `None` at the end.
    pub(super) async fn read(&self, bytes_max: usize) -> Option<Bytes> {
        let mut state = self.0.lock().await;
        let (left, origin) = &mut *state;
        while left.is_empty() {
            *left = match origin {
                Origin::Empty => return None,
                Origin::Stream(stream) => stream.next().await?.ok()?,
                Origin::Pipe(pipe) => pipe.recv().await?,
            };
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
