//! A connection between a socket of a process and HTTP/2.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, spawn_local};

/// Size of a read of what the process sends.
const READ_BYTES: usize = 64 * 1024;

/// A connected socket, which both directions hold.
pub(crate) struct Link {
    stream: TcpStream,
    /// True once it was reset from this side.
    is_reset: Cell<bool>,
    /// True once a write has found that the process reset it, which the kernel reports only once.
    is_broken: Cell<bool>,
    /// Released at the end of both directions.
    _held: Rc<dyn Any>,
}

impl Link {
    /// Begins to pass `input` on, and returns the other direction. That begins with `first`, which was
    /// read from the socket already. `held` lives as long as the connection.
    pub(crate) fn open(stream: TcpStream, first: Bytes, input: Incoming, held: Rc<dyn Any>) -> Output {
        // A small piece is mostly a question or an answer, which the other side waits for.
        let _ = stream.set_nodelay(true);
        let link = Rc::new(Link { stream, is_reset: Cell::default(), is_broken: Cell::default(), _held: held });
        let sending = spawn_local(send(Rc::clone(&link), input)).abort_handle();
        Output { link, first, sending: Some(sending) }
    }

    /// Resets the connection: the process sees an error and not an end.
    fn reset(&self) {
        self.is_reset.set(true);
        // On failure the process sees an end.
        let _ = sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        // The other direction wakes up.
        let _ = shutdown(&self.stream, Shutdown::Read);
    }

    async fn write(&self, mut piece: Bytes) -> std::io::Result<()> {
        while !piece.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(&piece) {
                Ok(written) => drop(piece.split_to(written)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Passes on what the caller sends, and then its end.
async fn send(link: Rc<Link>, mut input: Incoming) {
    while let Some(frame) = input.frame().await {
        let Ok(frame) = frame else { return link.reset() };
        let Ok(piece) = frame.into_data() else { continue };
        if let Err(error) = link.write(piece).await {
            // The process takes no more, and what it sent before that is still to be read: an answer
            // that refuses an upload. A broken pipe means that it has ended its own direction.
            return link.is_broken.set(error.kind() != std::io::ErrorKind::BrokenPipe);
        }
    }
    // On failure the connection has ended.
    let _ = shutdown(&link.stream, Shutdown::Write);
}

/// Bytes that the process sends. Dropping it before its end resets the connection.
pub(crate) struct Output {
    link: Rc<Link>,
    /// Bytes that were read before.
    first: Bytes,
    /// Task of the other direction; `None` once this one has ended, since that one goes on.
    sending: Option<AbortHandle>,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

impl Output {
    /// Returns the next bytes; `None` once the process sends no more.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        let mut piece = Vec::new();
        loop {
            ready!(self.link.stream.poll_read_ready(cx))?;
            if self.link.is_reset.get() {
                return Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())));
            }
            piece.reserve_exact(READ_BYTES);
            match self.link.stream.try_read_buf(&mut piece) {
                Ok(0) if self.link.is_broken.get() => {
                    return Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())));
                }
                Ok(0) => {
                    self.sending = None;
                    return Poll::Ready(None);
                }
                // The bytes may wait long for their reader.
                Ok(_) => return Poll::Ready(Some(Ok(Bytes::copy_from_slice(&piece)))),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(sending) = self.sending.take() {
            sending.abort();
            self.link.reset();
        }
    }
}
