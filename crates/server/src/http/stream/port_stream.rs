//! The two directions of a connection to a port, and the memory that they take.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use providers::{ByteStream, STREAM_BYTES_MAX};
use tokio::sync::mpsc;

use crate::budget::{Account, Reservation, Spent};

/// A part of what the client sends.
#[derive(Debug)]
pub enum Part {
    Bytes(Bytes),
    End,
}

/// Returns the way to a process: the sending end, and the stream for the provider. Without a
/// [`Part::End`] the stream ends with an error, which resets the connection.
pub fn input() -> (mpsc::Sender<Part>, ByteStream) {
    // One piece waits here, and one in the task that passes it on.
    let (sender, parts) = mpsc::channel(1);
    let input = stream::unfold(Some(parts), |parts| async move {
        let mut parts: mpsc::Receiver<Part> = parts?;
        match parts.recv().await {
            Some(Part::Bytes(bytes)) => Some((Ok(bytes), Some(parts))),
            Some(Part::End) => None,
            None => Some((Err(providers::Error::failed("read from a client", "it hung up")), None)),
        }
    });
    (sender, input.boxed())
}

/// Bytes of a process, in pieces as a provider gives them.
///
/// Memory for all that can wait here is reserved from the first byte until nothing waits any more:
/// a connection that is idle holds none. Where there is none for a first byte, the connection is
/// cut, which frees what has come; it could not be left to wait, since the process may go on.
pub struct PortStream {
    stream: ByteStream,
    held: Reservation,
}

/// Reason why a connection to a port breaks.
#[derive(Debug)]
pub enum Cut {
    /// The provider failed.
    Provider(providers::Error),
    /// The caller may hold no more memory.
    Spent(Spent),
}

impl PortStream {
    /// Wraps what a provider gives; its memory is taken from `account`.
    pub fn new(stream: ByteStream, account: &Account) -> Self {
        Self { stream, held: account.nothing() }
    }
}

impl Stream for PortStream {
    type Item = Result<Bytes, Cut>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Poll::Ready(piece) = self.stream.as_mut().poll_next(context) else {
            self.held.shrink_to(0);
            return Poll::Pending;
        };
        let Some(piece) = piece else { return Poll::Ready(None) };
        if self.held.bytes() == 0
            && let Err(spent) = self.held.grow(STREAM_BYTES_MAX)
        {
            return Poll::Ready(Some(Err(Cut::Spent(spent))));
        }
        Poll::Ready(Some(piece.map_err(Cut::Provider)))
    }
}

#[cfg(test)]
mod test {
    use futures_util::FutureExt;

    use super::*;
    use crate::budget::{Budget, Caller};

    #[tokio::test]
    async fn an_idle_connection_holds_nothing_and_one_that_sends_all_that_can_wait() {
        let budget = Budget::new(STREAM_BYTES_MAX as u64 * 4);
        let account = budget.account(Caller::Address(None), None);
        let (sender, receiver) = mpsc::channel(2);
        let pieces = stream::unfold(receiver, |mut receiver: mpsc::Receiver<_>| async {
            Some((receiver.recv().await?, receiver))
        });
        let mut port = PortStream::new(pieces.boxed(), &account);
        assert!(port.next().now_or_never().is_none());
        assert_eq!(budget.stats().used_bytes, 0);
        for piece in ["a", "b"] {
            sender.send(Ok(Bytes::from_static(piece.as_bytes()))).await.unwrap();
        }
        for piece in ["a", "b"] {
            assert_eq!(port.next().await.unwrap().unwrap(), piece);
            // Until the next one is asked for, it is on its way to the client.
            assert_eq!(budget.stats().used_bytes, STREAM_BYTES_MAX as u64);
        }
        assert!(port.next().now_or_never().is_none());
        assert_eq!(budget.stats().used_bytes, 0);
    }

    #[tokio::test]
    async fn where_no_memory_is_left_a_connection_that_sends_is_cut() {
        let budget = Budget::new(STREAM_BYTES_MAX as u64);
        let account = budget.account(Caller::Address(None), None);
        let mut port = PortStream::new(stream::iter([Ok(Bytes::from_static(b"a"))]).boxed(), &account);
        assert!(matches!(port.next().await, Some(Err(Cut::Spent(_)))));
    }
}
