//! Streams that are read by a rule, and written to as they are.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A rule for what is read of a stream.
pub trait Rule: Unpin {
    /// Returns how much may be read at once.
    ///
    /// # Errors
    /// If nothing more may be read.
    fn at_once(&mut self) -> io::Result<usize> {
        Ok(usize::MAX)
    }

    /// Counts what was read.
    ///
    /// # Errors
    /// If it was too much.
    fn came(&mut self, bytes: usize) -> io::Result<()>;
}

/// A stream that is read by a rule.
#[derive(Debug)]
pub struct Ruled<S, R> {
    /// The stream.
    pub stream: S,
    rule: R,
}

impl<S, R> Ruled<S, R> {
    /// Reads `stream` by `rule`.
    pub fn new(stream: S, rule: R) -> Self {
        Self { stream, rule }
    }
}

impl<S: AsyncRead + Unpin, R: Rule> AsyncRead for Ruled<S, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let at_once = self.rule.at_once()?;
        let before = buffer.filled().len();
        if buffer.remaining() <= at_once {
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(at_once));
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
            let read = part.filled().len();
            buffer.advance(read);
        }
        Poll::Ready(self.rule.came(buffer.filled().len() - before))
    }
}

impl<S: AsyncWrite + Unpin, R: Rule> AsyncWrite for Ruled<S, R> {
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
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
