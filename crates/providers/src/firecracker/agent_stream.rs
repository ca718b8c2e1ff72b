//! Byte stream to the agent of a machine, which may break while the machine runs.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::saved::Saved;
use super::work_dir::{VSOCK, WorkDir};
use crate::agent::BROKEN;

/// Looks at a machine whose stream has ended, and the pause between two of them: the process of a machine
/// closes its sockets in any order when it ends.
const LOOKS: u32 = 3;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Future that resolves to true if the box of the machine goes on.
type GoesOn = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A stream `S` whose end is an error of the kind [`BROKEN`] if the box goes on all the same, as after a
/// snapshot with its memory.
pub(super) struct AgentStream<S> {
    stream: S,
    goes_on: GoesOn,
    /// Set once the stream has ended: the result of `goes_on`.
    broke: Option<bool>,
}

impl<S> AgentStream<S> {
    pub(super) fn new(stream: S, goes_on: impl Future<Output = bool> + Send + 'static) -> AgentStream<S> {
        AgentStream { stream, goes_on: Box::pin(goes_on), broke: None }
    }

    /// Returns the error of a stream that broke, or `otherwise` if the box is gone.
    fn poll_end<T>(&mut self, context: &mut Context<'_>, otherwise: io::Result<T>) -> Poll<io::Result<T>> {
        let broke = match self.broke {
            Some(broke) => broke,
            None => ready!(self.goes_on.as_mut().poll(context)),
        };
        self.broke = Some(broke);
        Poll::Ready(if broke { Err(BROKEN.into()) } else { otherwise })
    }
}

/// Returns whether the box of a machine goes on: its process still listens, or it was written to disk.
pub(super) async fn goes_on(room: WorkDir) -> bool {
    for _ in 0..LOOKS {
        if room.connect(VSOCK).await.is_err() {
            return Saved::read(&room.suspended()).is_some();
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    true
}

impl<S: AsyncRead + Unpin> AsyncRead for AgentStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        let read =
            if self.broke.is_none() { ready!(pin!(&mut self.stream).poll_read(context, buffer)) } else { Ok(()) };
        if read.is_ok() && (buffer.remaining() < before || before == 0) {
            return Poll::Ready(Ok(()));
        }
        self.poll_end(context, read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AgentStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match ready!(pin!(&mut self.stream).poll_write(context, bytes)) {
            Ok(written) => Poll::Ready(Ok(written)),
            Err(error) => self.poll_end(context, Err(error)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match ready!(pin!(&mut self.stream).poll_write_vectored(context, pieces)) {
            Ok(written) => Poll::Ready(Ok(written)),
            Err(error) => self.poll_end(context, Err(error)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod test {
    use std::future::ready;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn an_end_is_an_error_only_while_the_box_goes_on() {
        for goes_on in [true, false] {
            let (mut agent, stream) = tokio::net::UnixStream::pair().unwrap();
            let mut stream = AgentStream::new(stream, ready(goes_on));
            agent.write_all(b"words").await.unwrap();
            stream.write_all(b"answer").await.unwrap();
            drop(agent);
            let mut words = [0; 5];
            stream.read_exact(&mut words).await.unwrap();
            assert_eq!(&words, b"words");
            for _ in 0..2 {
                // What was written is lost, which a unix socket says once.
                let end = match stream.read(&mut words).await {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => stream.read(&mut words).await,
                    end => end,
                };
                assert_eq!(end.map_err(|error| error.kind()), if goes_on { Err(BROKEN) } else { Ok(0) }, "{goes_on}");
                let written = stream.write(b"more").await.map_err(|error| error.kind());
                assert_eq!(written, Err(if goes_on { BROKEN } else { io::ErrorKind::BrokenPipe }), "{goes_on}");
            }
        }
    }
}
