//! A connection to a port as a byte stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_util::sync::PollSender;

use crate::budget::{Account, Reservation, Spent};
use crate::http::request_memory::held_with;
use crate::http::stream::port_stream::{Cut, Part, PortStream};

/// Largest piece that is sent to a program at once, in bytes.
const PIECE_BYTES_MAX: usize = 8 * 1024;
/// Size of the reads from a client that has switched, until it sends more at once.
const IDLE_BYTES: usize = 2 * 1024;
/// Longest wait for memory for a piece. It equals the time for which a program may take no byte.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(300);
/// Longest life of a switched connection after the direction of its client has ended.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(300);

type Waiting = Pin<Box<dyn Future<Output = Result<Reservation, Spent>> + Send>>;

/// Connection to a port. Dropping it before both ends resets it.
pub struct Tunnel {
    from: PortStream,
    /// Bytes that have come and are not read yet.
    rest: Bytes,
    /// True once the program sends no more.
    has_ended: bool,
    to: PollSender<Part>,
    account: Account,
    /// Wait for the memory of the next piece.
    waiting: Option<Waiting>,
}

impl Tunnel {
    /// Joins both directions; what waits for the program is taken from `account`.
    pub fn new(from: PortStream, to: tokio::sync::mpsc::Sender<Part>, account: Account) -> Self {
        Self { from, rest: Bytes::new(), has_ended: false, to: PollSender::new(to), account, waiting: None }
    }

    /// Passes bytes between the program and `client` until both directions have ended, or one
    /// fails. `early` are bytes of the program that have come before.
    pub async fn relay(self, client: impl AsyncRead + AsyncWrite, early: Bytes) {
        let Self { mut from, rest, has_ended, to, account, .. } = self;
        let (mut reader, mut writer) = tokio::io::split(client);
        let down = async move {
            writer.write_all(&early).await?;
            writer.write_all(&rest).await?;
            // Even an empty one holds the buffer that it was read into.
            drop((early, rest));
            if has_ended {
                writer.shutdown().await?;
            }
            while let Some(piece) = from.next().await {
                match piece.map_err(fault)? {
                    piece if piece.is_empty() => writer.shutdown().await?,
                    piece => writer.write_all(&piece).await?,
                }
            }
            io::Result::Ok(())
        };
        let up = async {
            let Some(to) = to.get_ref() else { return io::Result::Ok(()) };
            let mut buffer = vec![0; IDLE_BYTES];
            loop {
                let count = reader.read(&mut buffer).await?;
                let part = match buffer.get(..count) {
                    None | Some([]) => Part::End,
                    Some(bytes) => {
                        let held = account.reserve_within(count, MEMORY_WAIT_MAX).await;
                        Part::Bytes(held_with(Bytes::copy_from_slice(bytes), held.map_err(spent)?))
                    }
                };
                if count == buffer.len() {
                    buffer.resize(PIECE_BYTES_MAX, 0);
                }
                let is_end = matches!(part, Part::End);
                // A program that takes no more may have sent what is still under way.
                let is_taken = to.send(part).await.is_ok();
                if is_end || !is_taken {
                    tokio::time::sleep(HALF_CLOSED_MAX).await;
                    return Ok(());
                }
            }
        };
        let ended = tokio::select! {
            ended = down => ended,
            ended = up => ended,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a switched connection of a preview was cut");
        }
    }
}

fn spent(spent: Spent) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, spent)
}

fn fault(cut: Cut) -> io::Error {
    match cut {
        Cut::Provider(error) => io::Error::new(io::ErrorKind::ConnectionReset, error),
        Cut::Spent(error) => spent(error),
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() && !self.has_ended {
            match ready!(Pin::new(&mut self.from).poll_next(context)) {
                Some(Ok(piece)) if !piece.is_empty() => self.rest = piece,
                // An empty piece is the end of what the program sends.
                Some(Ok(_)) | None => self.has_ended = true,
                Some(Err(cut)) => return Poll::Ready(Err(fault(cut))),
            }
        }
        let count = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..count]);
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        // An error would end the other direction, too. Of a program that takes no more, what it has
        // answered is still wanted; the end of that ends the connection.
        if ready!(this.to.poll_reserve(context)).is_err() {
            return Poll::Pending;
        }
        let count = bytes.len().min(PIECE_BYTES_MAX);
        let mut held = this.account.nothing();
        if this.waiting.is_some() || held.grow(count).is_err() {
            let account = this.account.clone();
            let waiting = this.waiting.get_or_insert_with(|| {
                Box::pin(async move { account.reserve_within(PIECE_BYTES_MAX, MEMORY_WAIT_MAX).await })
            });
            let waited = ready!(waiting.as_mut().poll(context));
            this.waiting = None;
            held = waited.map_err(spent)?;
        }
        let piece = held_with(Bytes::copy_from_slice(&bytes[..count]), held);
        let sent = this.to.send_item(Part::Bytes(piece));
        Poll::Ready(sent.map(|()| count).map_err(|_| io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A program that takes no more needs no end.
        if !self.to.is_closed() && ready!(self.to.poll_reserve(context)).is_ok() {
            let _ = self.to.send_item(Part::End);
            self.to.close();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod test {
    use futures_util::stream;

    use super::*;
    use crate::budget::{Budget, Caller};
    use crate::http::stream::port_stream::input;

    fn tunnel(pieces: Vec<&'static str>) -> (Tunnel, providers::ByteStream) {
        let account = Budget::new(1 << 22).account(Caller::Address(None), None);
        let pieces = pieces.into_iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
        let from = PortStream::new(stream::iter(pieces).chain(stream::pending()).boxed(), &account);
        let (to, input) = input();
        (Tunnel::new(from, to, account), input)
    }

    #[tokio::test]
    async fn an_empty_piece_is_the_end_of_one_direction_and_the_other_goes_on() {
        let (mut tunnel, mut input) = tunnel(vec!["abc", "de", ""]);
        let mut read = String::new();
        tunnel.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "abcde");
        tunnel.write_all(b"hello").await.unwrap();
        assert_eq!(input.next().await.unwrap().unwrap(), "hello");
        tunnel.shutdown().await.unwrap();
        assert!(input.next().await.is_none());
    }

    #[tokio::test]
    async fn a_tunnel_that_is_dropped_resets_the_connection() {
        let (tunnel, mut input) = tunnel(vec![]);
        drop(tunnel);
        assert!(input.next().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn of_a_program_that_takes_no_more_the_rest_is_read() {
        let (mut one, input) = tunnel(vec!["answer", ""]);
        drop(input);
        assert!(tokio::time::timeout(Duration::from_millis(10), one.write_all(b"more")).await.is_err());
        let mut answer = String::new();
        one.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
        one.shutdown().await.unwrap();

        let (other, input) = tunnel(vec!["answer", ""]);
        drop(input);
        let (client, mut ours) = tokio::io::duplex(4);
        let talk = async {
            ours.write_all(b"more").await.unwrap();
            let mut answer = String::new();
            ours.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::select! {
            answer = talk => assert_eq!(answer, "answer"),
            () = other.relay(client, Bytes::new()) => panic!("the program has not ended"),
        }
    }

    #[tokio::test]
    async fn a_client_that_ends_its_direction_gets_the_rest() {
        let (tunnel, mut input) = tunnel(vec!["later", ""]);
        let (client, mut ours) = tokio::io::duplex(64);
        let relay = tunnel.relay(client, Bytes::from_static(b"early "));
        let talk = async {
            ours.write_all(b"question").await.unwrap();
            ours.shutdown().await.unwrap();
            assert_eq!(input.next().await.unwrap().unwrap(), "question");
            assert!(input.next().await.is_none());
            let mut answer = String::new();
            ours.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::select! {
            answer = talk => assert_eq!(answer, "early later"),
            () = relay => panic!("the program has not ended"),
        }
    }
}
