//! A request body that must keep coming.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// Longest wait for [`WAIT_BYTES`] of a body, or for its end.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Bytes of a body that must come within [`WAIT_MAX`].
const WAIT_BYTES: usize = 1024;

/// Error of a body that came too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fewer than {WAIT_BYTES} bytes arrived in {} seconds", WAIT_MAX.as_secs())]
pub struct Stalled;

/// Body that fails with [`Stalled`] when fewer than [`WAIT_BYTES`] came in [`WAIT_MAX`] of
/// waiting. Only time spent waiting for the client counts, not the time between the server's
/// reads.
#[derive(Debug)]
pub(super) struct Patient<B> {
    /// `None` only while dropping.
    body: Option<B>,
    /// Receiver of the unread rest.
    rest: Option<oneshot::Sender<B>>,
    sleep: Pin<Box<Sleep>>,
    /// Start of the current wait; `None` while the body is not waited for.
    since: Option<Instant>,
    /// Time waited since the last [`WAIT_BYTES`].
    waited: Duration,
    /// Bytes that came in that time.
    came: usize,
    /// True if it may take as long as it likes.
    is_unhurried: bool,
    is_over: bool,
}

impl<B> Patient<B> {
    /// Wraps `body`. The receiver gets the unread rest when the wrapper is dropped.
    pub(super) fn new(body: B) -> (Self, oneshot::Receiver<B>) {
        let (rest, left) = oneshot::channel();
        let patient = Self {
            body: Some(body),
            rest: Some(rest),
            sleep: Box::pin(tokio::time::sleep(WAIT_MAX)),
            since: None,
            waited: Duration::ZERO,
            came: 0,
            is_unhurried: false,
            is_over: false,
        };
        (patient, left)
    }

    /// Wraps `body` without a bound on its pace.
    pub(super) fn unhurried(body: B) -> (Self, oneshot::Receiver<B>) {
        let (mut patient, left) = Self::new(body);
        patient.is_unhurried = true;
        (patient, left)
    }

    fn count(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
        self.came += bytes;
        if self.came >= WAIT_BYTES {
            (self.came, self.waited) = (0, Duration::ZERO);
        }
    }
}

impl<B> Drop for Patient<B> {
    fn drop(&mut self) {
        if let (Some(rest), Some(body), false) = (self.rest.take(), self.body.take(), self.is_over) {
            // The receiver may be gone.
            let _ = rest.send(body);
        }
    }
}

impl<B> Body for Patient<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let (Some(body), false) = (&mut this.body, this.is_over) else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref);
            this.count(bytes.map_or(0, Bytes::len));
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if this.is_unhurried {
            return Poll::Pending;
        }
        if this.since.is_none() {
            let now = Instant::now();
            this.since = Some(now);
            this.sleep.as_mut().reset(now + WAIT_MAX.saturating_sub(this.waited));
        }
        ready!(this.sleep.as_mut().poll(context));
        this.is_over = true;
        Poll::Ready(Some(Err(Stalled.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

#[cfg(test)]
mod test {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// Returns a body of pieces, each with its delay in seconds and its size in bytes.
    fn slow(pieces: Vec<(u64, usize)>) -> Patient<impl Body<Data = Bytes, Error = Infallible> + Unpin> {
        let frames = stream::iter(pieces).then(|(seconds, bytes)| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(Frame::data(Bytes::from(vec![0; bytes])))
        });
        Patient::new(StreamBody::new(Box::pin(frames))).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_given_up_and_over() {
        let mut body = slow(vec![(1, 10), (600, 10)]);
        assert!(body.frame().await.unwrap().is_ok());
        let start = Instant::now();
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(error.is::<Stalled>(), "{error}");
        assert!(start.elapsed() <= WAIT_MAX);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_does_not_keep_it_alive() {
        let body = slow(vec![(5, 1); 1000]);
        let start = Instant::now();
        let error = body.collect().await.unwrap_err();
        assert!(error.is::<Stalled>(), "{error}");
        assert!(start.elapsed() <= WAIT_MAX);
    }

    #[tokio::test]
    async fn what_nobody_has_read_is_left() {
        let frames = ["one", "two"].map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))));
        let (mut body, left) = Patient::new(StreamBody::new(stream::iter(frames)));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        drop(body);
        assert_eq!(BodyExt::collect(left.await.unwrap()).await.unwrap().to_bytes(), "two");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_goes_on_may_take_hours() {
        let body = slow(vec![(59, WAIT_BYTES); 200]);
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 200 * WAIT_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_the_server_takes_does_not_count() {
        let mut body = slow(vec![(1, 1); 30]);
        let mut count = 0;
        while let Some(frame) = body.frame().await {
            frame.unwrap();
            count += 1;
            tokio::time::sleep(Duration::from_secs(100)).await;
        }
        assert_eq!(count, 30);
    }
}
