//! One HTTP/2 connection to an agent.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use guest_protocol::{VERSION, VERSION_HEADER};
use http::{HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::{Error, Result};

/// The body of a request.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// How much of one stream may be on its way, in bytes: enough that a stream is
/// not slowed by the round trip. A reader that has stopped holds so much.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// The most commands and file reads at once. Their readers are callers, who may
/// stop reading.
const STREAMS_MAX: u32 = 512;
/// Room for short answers beside [`STREAMS_MAX`] streams that nobody reads:
/// were the connection's window smaller than the sum, a few stopped readers
/// would stop everything else.
const CONNECTION_WINDOW_BYTES: u32 = (STREAMS_MAX + 64) * STREAM_WINDOW_BYTES;
/// Fewer, larger frames: 1.7 times the speed of the default.
const FRAME_BYTES_MAX: u32 = 64 * 1024;
/// A path, a name and a link's target of 4 KiB each, every byte written as six.
const HEADERS_BYTES_MAX: u32 = 128 * 1024;

/// Runs what hyper needs beside a request, until the connection is dropped.
#[derive(Clone)]
struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            // Dropping the connection must drop the socket at once.
            let _ = stop.run_until_cancelled_owned(task).await;
        });
    }
}

/// The connection; dropping it closes the byte stream.
pub(super) struct Connection {
    sender: SendRequest<Body>,
    streams: Arc<Semaphore>,
    closed: CancellationToken,
    _stop: DropGuard,
}

impl Connection {
    /// Shakes hands over `io`.
    pub(super) async fn open(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection> {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let tasks = Tasks { tracker: TaskTracker::new(), stop };
        let (sender, driver) = http2::Builder::new(tasks.clone())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| fault("reach the agent", error))?;
        let closed = CancellationToken::new();
        let on_end = closed.clone().drop_guard();
        hyper::rt::Executor::execute(&tasks, async move {
            let _on_end = on_end;
            if let Err(error) = driver.await {
                tracing::debug!(%error, "the connection to an agent broke");
            }
        });
        Ok(Connection { sender, streams: Arc::new(Semaphore::new(STREAMS_MAX as usize)), closed, _stop: guard })
    }

    /// Whether the byte stream has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled() || self.sender.is_closed()
    }

    /// A place for a stream that a caller reads at its own speed.
    pub(super) fn stream_permit(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            Error::Exhausted(format!("{STREAMS_MAX} commands and file reads are running in this box; end some first"))
        })
    }

    /// Sends one request and waits for the head of its answer.
    pub(super) async fn send(&self, action: &'static str, mut request: Request<Body>) -> Result<Response<Incoming>> {
        request.headers_mut().insert(VERSION_HEADER, HeaderValue::from(VERSION));
        let mut sender = self.sender.clone();
        sender.ready().await.map_err(|error| fault(action, error))?;
        sender.send_request(request).await.map_err(|error| fault(action, error))
    }
}

/// Tells a connection that has ended from a request that failed.
pub(super) fn fault(action: &'static str, error: hyper::Error) -> Error {
    let connection_broke = error.source().is_some_and(|source| {
        source.is::<io::Error>()
            || source.downcast_ref::<h2::Error>().is_some_and(|error| error.is_io() || error.is_go_away())
    });
    if connection_broke || error.is_closed() || error.is_canceled() {
        Error::Gone
    } else {
        Error::failed(action, error)
    }
}
