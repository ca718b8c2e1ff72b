//! The protocol of a connection without TLS. HTTP/2 begins with bytes that no request of HTTP/1.1
//! has.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// First bytes of a client that speaks HTTP/2. RFC 9113 §3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Stream that ends for its reader where it begins with [`PREFACE`]. [`Opening::again`] then
/// begins it anew, for a reader of HTTP/2. Requests of HTTP/1.1 pass without a copy.
#[derive(Debug)]
pub(super) struct Opening<S> {
    stream: S,
    state: State,
}

#[derive(Debug)]
enum State {
    /// This many bytes of the preface have come, and nothing else.
    Looking(usize),
    /// The whole preface has come, with what is behind it.
    Found(Bytes),
    /// These bytes are read before further ones of the stream.
    Replaying(Bytes),
    Passing,
}

impl<S> Opening<S> {
    /// Looks for the preface in `stream`.
    pub(super) fn of(stream: S) -> Self {
        Self { stream, state: State::Looking(0) }
    }

    /// Passes all of `stream` on: its protocol is known.
    pub(super) fn known(stream: S) -> Self {
        Self { stream, state: State::Passing }
    }

    /// Returns the stream from its first byte if it begins with the preface.
    pub(super) fn again(self) -> Option<Self> {
        let State::Found(bytes) = self.state else { return None };
        Some(Self { stream: self.stream, state: State::Replaying(bytes) })
    }
}

/// Returns the bytes read so far: the known beginning of the preface, and the new ones.
fn all_read(known: usize, new: &[u8]) -> Bytes {
    Bytes::from([&PREFACE[..known], new].concat())
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Passing => return Pin::new(&mut this.stream).poll_read(context, buffer),
                State::Found(_) => return Poll::Ready(Ok(())),
                State::Replaying(bytes) => {
                    let count = bytes.len().min(buffer.remaining());
                    buffer.put_slice(&bytes[..count]);
                    bytes.advance(count);
                    if bytes.is_empty() {
                        this.state = State::Passing;
                    }
                    return Poll::Ready(Ok(()));
                }
                State::Looking(known) => {
                    let known = *known;
                    let before = buffer.filled().len();
                    ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
                    let new = &buffer.filled()[before..];
                    let missing = &PREFACE[known..];
                    this.state = if new.starts_with(missing) {
                        State::Found(all_read(known, new))
                    } else if !new.is_empty() && missing.starts_with(new) {
                        State::Looking(known + new.len())
                    } else if known == 0 {
                        this.state = State::Passing;
                        return Poll::Ready(Ok(()));
                    } else {
                        State::Replaying(all_read(known, new))
                    };
                    buffer.set_filled(before);
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The reader that took the preface for the end must not end the stream.
        if matches!(self.state, State::Found(_)) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod test {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// Sends `text` in two pieces, and reads all of the first reader and of the one after it.
    async fn read(text: &[u8], at: usize) -> (Vec<u8>, Option<Vec<u8>>) {
        let (mut client, stream): (DuplexStream, _) = tokio::io::duplex(1024);
        let (first, second) = text.split_at(at);
        let sending = async {
            client.write_all(first).await.unwrap();
            tokio::task::yield_now().await;
            client.write_all(second).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut opening = Opening::of(stream);
        let mut came = Vec::new();
        let (_, read) = tokio::join!(sending, opening.read_to_end(&mut came));
        read.unwrap();
        let Some(mut again) = opening.again() else { return (came, None) };
        let mut rest = Vec::new();
        again.read_to_end(&mut rest).await.unwrap();
        (came, Some(rest))
    }

    #[tokio::test]
    async fn the_preface_is_the_end_for_the_first_reader_and_the_beginning_for_the_next() {
        let text = [PREFACE, &b"settings"[..]].concat();
        for at in 0..=text.len() {
            assert_eq!(read(&text, at).await, (Vec::new(), Some(text.clone())), "{at}");
        }
    }

    #[tokio::test]
    async fn whatever_else_comes_is_passed_on_as_it_is() {
        for text in [
            "GET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\n\r\n",
            "PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r",
            " PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "",
        ] {
            for at in 0..=text.len() {
                assert_eq!(read(text.as_bytes(), at).await, (text.as_bytes().to_vec(), None), "{text:?} {at}");
            }
        }
    }

    #[tokio::test]
    async fn the_first_reader_cannot_end_a_stream_that_goes_on() {
        let (mut client, stream) = tokio::io::duplex(1024);
        client.write_all(PREFACE).await.unwrap();
        let mut opening = Opening::of(stream);
        assert_eq!(opening.read(&mut [0; 100]).await.unwrap(), 0);
        opening.shutdown().await.unwrap();
        opening.again().unwrap().write_all(b"hello").await.unwrap();
        assert_eq!(client.read(&mut [0; 5]).await.unwrap(), 5);
    }
}
