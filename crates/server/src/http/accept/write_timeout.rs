//! A stream that bounds the time for which a client takes no bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection_limit::Place;

/// Longest time for which a client may take no byte of what is sent. Long enough for a person
/// who looks at a page of output and reads on later.
pub(super) const WRITE_STALL_MAX: Duration = Duration::from_secs(300);

/// Connection that keeps its place until it is dropped, also after a switch to another protocol.
#[derive(Debug)]
pub(super) struct Steady<S> {
    stream: S,
    /// Deadline of a blocked write; `None` while none is blocked.
    stuck: Option<Pin<Box<Sleep>>>,
    place: Place,
}

impl<S> Steady<S> {
    pub(super) fn new(stream: S, place: Place) -> Self {
        Self { stream, stuck: None, place }
    }

    fn bound<T>(&mut self, poll: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            if self.stuck.take().is_some() {
                self.place.turn().stick(false);
            }
            return poll;
        }
        let stuck = self.stuck.get_or_insert_with(|| {
            self.place.turn().stick(true);
            Box::pin(tokio::time::sleep(WRITE_STALL_MAX))
        });
        ready!(stuck.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Steady<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Steady<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(poll, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.bound(poll, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        self.bound(poll, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bound(poll, context)
    }
}

#[cfg(test)]
mod test {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::super::connection_limit::Places;
    use super::*;

    async fn pair() -> (Steady<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let places = Places::new(1);
        let place = places.take(places.free().await, places.share(None).unwrap(), false);
        let (ours, theirs) = tokio::io::duplex(16);
        (Steady::new(ours, place), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (mut ours, _theirs) = pair().await;
        let start = Instant::now();
        let error = ours.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() >= WRITE_STALL_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_slowly_is_not_given_up() {
        let (mut ours, mut theirs) = pair().await;
        let reading = async {
            for _ in 0..8 {
                tokio::time::sleep(WRITE_STALL_MAX - Duration::from_secs(1)).await;
                theirs.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[0; 8 * 16]), reading);
        written.unwrap();
    }
}
