//! Body of a request over HTTP/2.
//!
//! The library keeps each frame that was not taken in some three hundred bytes, however small it
//! is. So frames are taken as they come, and joined. The client may send more only when the reader
//! has taken what came.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use axum::http::HeaderMap;
use bytes::{Bytes, BytesMut};
use h2::{FlowControl, RecvStream};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

/// Smallest frame that is passed on without a copy. Its bytes keep alive those that were read with
/// them.
const LARGE_BYTES: usize = 4 * 1024;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Body that a client sends.
#[derive(Debug)]
pub(super) struct Received {
    shared: Arc<Shared>,
    /// Credit of the client; `None` if there is no body.
    flow: Option<FlowControl>,
    /// Bytes to come, where the client has said so.
    left: Option<u64>,
}

/// End of a body at which its frames arrive.
#[derive(Debug)]
pub(super) struct Arriving {
    shared: Arc<Shared>,
    stream: RecvStream,
}

type Shared = Mutex<State>;

#[derive(Debug, Default)]
struct State {
    /// The first of the bytes.
    first: Bytes,
    /// Bytes behind the first.
    rest: BytesMut,
    trailers: Option<HeaderMap>,
    /// Error at the end, after the bytes.
    fault: Option<Error>,
    has_ended: bool,
    /// True once the reader has waited for bytes.
    is_wanted: bool,
    /// True once the reader is gone.
    is_refused: bool,
    reader: Option<Waker>,
    /// Task that waits until the body is wanted.
    asker: Option<Waker>,
    /// True once the request was answered.
    is_answered: bool,
    /// Task that waits for frames.
    arriving: Option<Waker>,
}

/// Returns the body of a request of `length` bytes, the end at which it arrives, and the guard that
/// ends both.
pub(super) fn received(mut stream: RecvStream, length: Option<u64>) -> (Received, Option<Arriving>, Answered) {
    let shared = Arc::new(Shared::default());
    let answered = Answered(Arc::clone(&shared));
    if stream.is_end_stream() {
        shared.lock().has_ended = true;
        return (Received { shared, flow: None, left: Some(0) }, None, answered);
    }
    let flow = Some(stream.flow_control().clone());
    let received = Received { shared: Arc::clone(&shared), flow, left: length };
    (received, Some(Arriving { shared, stream }), answered)
}

impl State {
    fn add(&mut self, bytes: Bytes) {
        if self.is_refused {
            return;
        }
        if self.first.is_empty() && self.rest.is_empty() && bytes.len() >= LARGE_BYTES {
            self.first = bytes;
        } else {
            self.rest.extend_from_slice(&bytes);
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn end(&mut self, fault: Option<Error>) {
        self.has_ended = true;
        self.fault = fault;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Arriving {
    /// Takes frames as they arrive, until the last or until the request was answered. Without a
    /// reader they are dropped, and the client may not send more than its window.
    pub(super) async fn run(mut self) {
        let Self { shared, stream } = &mut self;
        poll_fn(|context| {
            let mut state = shared.lock();
            if state.is_answered {
                return Poll::Ready(());
            }
            state.arriving = Some(context.waker().clone());
            drop(state);
            while let Some(came) = ready!(stream.poll_data(context)) {
                let mut state = shared.lock();
                match came {
                    Ok(bytes) => state.add(bytes),
                    Err(error) => {
                        state.end(Some(error.into()));
                        return Poll::Ready(());
                    }
                }
            }
            let trailers = ready!(stream.poll_trailers(context));
            let mut state = shared.lock();
            match trailers {
                Ok(trailers) => {
                    state.trailers = trailers;
                    state.end(None);
                }
                Err(error) => state.end(Some(error.into())),
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// Guard of a request under way. Dropping it cuts its body off.
#[derive(Debug)]
pub(super) struct Answered(Arc<Shared>);

impl Answered {
    /// Returns whether the reader waits for bytes, and else wakes the task once it does.
    pub(super) fn is_wanted(&self, context: &Context<'_>) -> bool {
        let mut state = self.0.lock();
        state.asker = Some(context.waker().clone());
        state.is_wanted
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_answered = true;
        if !state.has_ended {
            state.end(Some(io::Error::from(io::ErrorKind::ConnectionReset).into()));
        }
        if let Some(arriving) = state.arriving.take() {
            arriving.wake();
        }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let mut state = this.shared.lock();
        let bytes = match std::mem::take(&mut state.first) {
            first if first.is_empty() => state.rest.split().freeze(),
            first => first,
        };
        if !bytes.is_empty() {
            drop(state);
            if let Some(flow) = &mut this.flow {
                // Fails only for a stream that has ended.
                let _ = flow.release_capacity(bytes.len());
            }
            this.left = this.left.map(|left| left.saturating_sub(bytes.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if state.has_ended {
            let fault = state.fault.take().map(Err);
            let trailers = state.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)));
            return Poll::Ready(fault.or(trailers));
        }
        state.reader = Some(context.waker().clone());
        if !std::mem::replace(&mut state.is_wanted, true)
            && let Some(asker) = state.asker.take()
        {
            asker.wake();
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let state = self.shared.lock();
        let is_all_taken = state.first.is_empty() && state.rest.is_empty();
        state.has_ended && is_all_taken && state.fault.is_none() && state.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_refused = true;
        (state.first, state.rest) = (Bytes::new(), BytesMut::new());
    }
}
