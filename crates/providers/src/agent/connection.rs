//! One HTTP/2 connection to an agent.
//!
//! The streams are those of `h2`, not of hyper, which sends each body in a task of its own. Such
//! a stream is only reset when that task ends, and a task that waits for a command to read its
//! stdin does not end.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::frame::HEADER_BYTES;
use guest_protocol::{
    EGRESS_CONNECTIONS_MAX, FAILURE_TRAILER, LISTEN_CONNECTIONS_MAX, RESET_TRAILER, USER_HEADER, VERSION,
    VERSION_HEADER,
};
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderValue, Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::wire::{failure, from_header, to_header};
use crate::{Error, Result, STREAM_BYTES_MAX};

/// Flow-control window of one stream, in bytes: large enough that the round trip does not slow a
/// stream down. A reader that has stopped holds at most this much.
const STREAM_WINDOW_BYTES: u32 = STREAM_BYTES_MAX as u32;
/// The most concurrent commands and file reads. Their readers are callers, who may stop reading.
const STREAMS_MAX: u32 = 512;
/// The most connections out of the box at once, asked for or made. They have places of their own: it
/// is the box that asks for them.
const EGRESS_MAX: usize = EGRESS_CONNECTIONS_MAX;
/// The most large answers of one box that are gathered at once: an agent may answer any request
/// with as much as its limit allows.
const LARGE_ANSWERS_MAX: usize = 1;
/// Window of the connection: room for short answers beside [`STREAMS_MAX`] streams that are not
/// being read. If it were smaller than the sum of their windows, a few stopped readers would stop
/// everything else. There is no more for [`EGRESS_MAX`]: a box whose hosts do not read may stop
/// itself, but must not fill the server's memory.
const CONNECTION_WINDOW_BYTES: u32 = (STREAMS_MAX + 64) * STREAM_WINDOW_BYTES;
/// Largest frame, in bytes. One holds all that an agent reads at once, with its head, so that
/// frames are few.
const FRAME_BYTES_MAX: u32 = 256 * 1024 + HEADER_BYTES as u32;
/// The most bytes waiting to be written for one stream.
const SEND_BUFFER_BYTES: usize = 1024 * 1024;
/// Number of streams that were left and are remembered, so that what the agent had already sent on them
/// is dropped. Such a frame on a stream that is forgotten is an error, and after
/// [`STRAY_FRAMES_MAX`] of them the connection ends, with everything on it.
const LEFT_STREAMS_MAX: usize = 4096;
/// Time for which they are remembered: that of an agent that has no processor.
const LEFT_STREAMS_KEPT: Duration = Duration::from_secs(30);
/// Bound on frames of streams that do not exist, over the life of a connection: each is answered, and
/// an agent may leave the answers unread.
const STRAY_FRAMES_MAX: usize = 16 * 1024;
/// Largest headers: a path, a name and a link's target of 4 KiB each, every byte encoded as six.
const HEADERS_BYTES_MAX: u32 = 128 * 1024;

/// Kind of the error of a byte stream that broke while its box goes on. No socket gives it.
pub(crate) const BROKEN: io::ErrorKind = io::ErrorKind::NetworkDown;

/// A connection to an agent; dropping it closes the byte stream.
pub(super) struct Connection {
    sender: SendRequest<Bytes>,
    streams: Arc<Semaphore>,
    egress: Arc<Semaphore>,
    listen: Arc<Semaphore>,
    large_answers: Arc<Semaphore>,
    closed: CancellationToken,
    faults: Faults,
    /// User that requests about files name, if they name one.
    user: Option<HeaderValue>,
    /// Task that reads and writes the byte stream.
    _driver: Arc<JoinSet<()>>,
}

impl Connection {
    /// Performs the HTTP/2 handshake over `io`.
    pub(super) async fn open(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection> {
        let (sender, connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .max_concurrent_reset_streams(LEFT_STREAMS_MAX)
            .reset_stream_duration(LEFT_STREAMS_KEPT)
            .max_local_error_reset_streams(Some(STRAY_FRAMES_MAX))
            .enable_push(false)
            .handshake(io)
            .await
            .map_err(|error| Faults::default().of("reach the agent", error))?;
        let closed = CancellationToken::new();
        let on_end = closed.clone().drop_guard();
        let mut driver = JoinSet::new();
        let faults = Faults::default();
        let ended = faults.hung_up.clone();
        driver.spawn(async move {
            let _on_end = on_end;
            if let Some(Err(error)) = ended.run_until_cancelled_owned(connection).await {
                tracing::debug!(%error, "the connection to an agent broke");
            }
        });
        Ok(Connection {
            sender,
            streams: Arc::new(Semaphore::new(STREAMS_MAX as usize)),
            egress: Arc::new(Semaphore::new(EGRESS_MAX)),
            listen: Arc::new(Semaphore::new(LISTEN_CONNECTIONS_MAX)),
            large_answers: Arc::new(Semaphore::new(LARGE_ANSWERS_MAX)),
            closed,
            faults,
            user: None,
            _driver: Arc::new(driver),
        })
    }

    /// Returns the same connection, whose requests about files name a user.
    pub(super) fn acting_as(&self, user: &str) -> Result<Connection> {
        let user = to_header(&user).ok_or_else(|| Error::Invalid("the name of the user is too long".to_owned()))?;
        Ok(Connection {
            sender: self.sender.clone(),
            streams: Arc::clone(&self.streams),
            egress: Arc::clone(&self.egress),
            listen: Arc::clone(&self.listen),
            large_answers: Arc::clone(&self.large_answers),
            closed: self.closed.clone(),
            faults: self.faults.clone(),
            user: Some(user),
            _driver: Arc::clone(&self._driver),
        })
    }

    /// Ends the byte stream, and all requests on it. The box goes on.
    pub(super) fn end(&self) {
        self.faults.hung_up.cancel();
    }

    /// Returns whether the byte stream has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Acquires a permit for a command, whose output a caller reads at its own speed.
    pub(super) fn command_permit(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| crowded())
    }

    /// Acquires a permit for a file read, waiting at most `wait`: other reads end soon.
    pub(super) async fn read_permit(&self, wait: Duration) -> Result<OwnedSemaphorePermit> {
        let permit = tokio::time::timeout(wait, Arc::clone(&self.streams).acquire_owned()).await;
        permit.ok().and_then(std::result::Result::ok).ok_or_else(crowded)
    }

    /// Waits for the permit for a connection out of the box.
    pub(super) async fn egress_permit(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.egress).acquire_owned().await.map_err(|_| Error::Gone)
    }

    /// Waits for the permit for a connection to a port that a caller listens on.
    pub(super) async fn listen_permit(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.listen).acquire_owned().await.map_err(|_| Error::Gone)
    }

    /// Waits for the permit for an answer that takes much memory until it is complete.
    pub(super) async fn large_answer(&self) -> Result<SemaphorePermit<'_>> {
        self.large_answers.acquire().await.map_err(|_| Error::Gone)
    }

    /// Sends the head of a request. Dropping all parts of the result resets the stream, which
    /// cancels the request in the agent.
    pub(super) async fn begin(
        &self,
        action: &'static str,
        mut request: Request<()>,
    ) -> Result<(impl Future<Output = Result<Response<Incoming>>> + Unpin + use<>, Outgoing)> {
        if let Some(user) = &self.user {
            request.headers_mut().insert(USER_HEADER, user.clone());
        }
        let mut sender = self.sender.clone().ready().await.map_err(|error| self.fault(action, error))?;
        let (mut answer, stream) = sender.send_request(request, false).map_err(|error| self.fault(action, error))?;
        let faults = self.faults.clone();
        let head = poll_fn(move |context| {
            std::pin::Pin::new(&mut answer).poll(context).map(|answer| match answer {
                Ok(answer) => {
                    Ok(answer.map(|stream| Incoming { stream, taken: 0, is_reset: false, faults: faults.clone() }))
                }
                Err(error) => Err(faults.of(action, error)),
            })
        });
        Ok((head, Outgoing { action, stream, faults: self.faults.clone() }))
    }

    fn fault(&self, action: &'static str, error: h2::Error) -> Error {
        let fault = self.faults.of(action, error);
        if self.is_closed() && matches!(fault, Error::Failed { .. }) { Error::Gone } else { fault }
    }
}

fn crowded() -> Error {
    Error::Exhausted(format!("{STREAMS_MAX} commands and file reads are running in this sandbox; end some first"))
}

/// Builds the head of a request. The host in its URI has no meaning.
pub(super) fn request(action: &'static str, method: Method, path: &str) -> Result<Request<()>> {
    Request::builder()
        .method(method)
        .uri(format!("http://box{path}"))
        .header(VERSION_HEADER, VERSION)
        .body(())
        .map_err(|error| Error::failed(action, error))
}

/// Body of a request.
pub(super) struct Outgoing {
    action: &'static str,
    stream: SendStream<Bytes>,
    faults: Faults,
}

impl Outgoing {
    /// Sends `bytes`, which are few enough to be buffered here until the agent takes them.
    pub(super) fn put(&mut self, bytes: Bytes, is_last: bool) -> Result<()> {
        match self.stream.send_data(bytes, is_last) {
            Ok(()) => Ok(()),
            // The agent may have answered already, and its answer is more precise.
            Err(error) if !error.is_io() && !error.is_go_away() => Ok(()),
            Err(error) => Err(self.faults.of(self.action, error)),
        }
    }

    /// Waits until the agent accepts some bytes, and sends that many from the front of `bytes`.
    /// Returns `false` when the agent accepts no more.
    pub(super) async fn put_some(&mut self, bytes: &mut Bytes) -> Result<bool> {
        self.stream.reserve_capacity(bytes.len());
        while self.stream.capacity() == 0 {
            match poll_fn(|context| self.stream.poll_capacity(context)).await {
                Some(Ok(_)) => {}
                Some(Err(error)) if error.is_io() || error.is_go_away() => {
                    return Err(self.faults.of(self.action, error));
                }
                Some(Err(_)) | None => return Ok(false),
            }
        }
        let piece = bytes.split_to(self.stream.capacity().min(bytes.len()));
        self.put(piece, false)?;
        Ok(true)
    }
}

/// Body of an answer.
pub(super) struct Incoming {
    stream: RecvStream,
    /// Bytes of the window that the last piece used.
    taken: usize,
    is_reset: bool,
    faults: Faults,
}

impl Incoming {
    /// Returns the next piece, never empty, or `None` at the end. Cancel-safe. Releases the
    /// window of the piece before, which counts until then, so that a reader that has stopped
    /// holds at most one window.
    ///
    /// # Errors
    /// The reason of the agent, too, for an answer that broke off.
    pub(super) async fn piece(&mut self, action: &'static str) -> Result<Option<Bytes>> {
        loop {
            let taken = std::mem::take(&mut self.taken);
            self.stream.flow_control().release_capacity(taken).map_err(|error| self.faults.of(action, error))?;
            match self.stream.data().await {
                None => return self.end(action).await,
                Some(Ok(piece)) => {
                    self.taken = piece.len();
                    if !piece.is_empty() {
                        return Ok(Some(piece));
                    }
                }
                // The answer was complete, and the agent does not want the rest of the request.
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) && error.is_reset() => return Ok(None),
                Some(Err(error)) => return Err(self.faults.of(action, error)),
            }
        }
    }

    /// Reads what follows the last piece. An error there is of the request or of the connection: the answer
    /// was complete.
    async fn end(&mut self, action: &'static str) -> Result<Option<Bytes>> {
        let Ok(Some(trailers)) = self.stream.trailers().await else { return Ok(None) };
        self.is_reset = trailers.contains_key(RESET_TRAILER);
        let Some(found) = trailers.get(FAILURE_TRAILER) else { return Ok(None) };
        Err(match from_header(found) {
            Some(found) => failure(action, found),
            None => Error::failed(action, "the agent aborted the response without a reason"),
        })
    }

    /// Returns whether a connection was reset, after its last piece.
    pub(super) fn is_reset(&self) -> bool {
        self.is_reset
    }
}

/// Errors of the requests of one connection.
#[derive(Debug, Clone, Default)]
struct Faults {
    /// Token that ends the connection from this side.
    hung_up: CancellationToken,
}

impl Faults {
    /// Distinguishes a box that is gone from a connection that has ended, and both from a request that failed.
    fn of(&self, action: &'static str, error: h2::Error) -> Error {
        if !error.is_io() && !error.is_go_away() {
            return Error::failed(action, error);
        }
        let is_broken = error.get_io().is_some_and(|error| error.kind() == BROKEN);
        if !is_broken && !self.hung_up.is_cancelled() {
            return Error::Gone;
        }
        Error::Conflict(
            "the connection to the sandbox broke, for example because of a snapshot with memory or a pause to disk; \
             the request may have been carried out: check before you send it again"
                .to_owned(),
        )
    }
}
