//! Streams whose reads follow a rule; writes pass through.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Rule for the reads of a stream.
pub trait Rule: Unpin {
    /// Returns the most bytes that the next read may take; 0 to be asked again after other tasks
    /// had a turn.
    ///
    /// # Errors
    /// If no more may be read.
    fn at_once(&mut self) -> io::Result<usize> {
        Ok(usize::MAX)
    }

    /// Counts the bytes of a read.
    ///
    /// # Errors
    /// If they were too many.
    fn came(&mut self, bytes: usize) -> io::Result<()>;
}

/// Stream whose reads follow a rule.
#[derive(Debug)]
pub struct Ruled<S, R> {
    pub stream: S,
    rule: R,
}

impl<S, R> Ruled<S, R> {
    /// Wraps `stream` so that its reads follow `rule`.
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
        if at_once == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
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
