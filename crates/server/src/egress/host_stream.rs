//! The stream on the other side of a box: a host, or the part of the server that changes requests on
//! their way to one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use rustix::net::connect_unspec;
use tokio::io::AsyncWrite;
use tokio::net::{TcpStream, UnixStream, tcp, unix};

/// A stream to a host.
pub(super) enum HostStream {
    /// The host itself.
    Tcp(TcpStream),
    /// A part of this server.
    Local(UnixStream),
}

impl From<TcpStream> for HostStream {
    fn from(stream: TcpStream) -> HostStream {
        HostStream::Tcp(stream)
    }
}

impl From<UnixStream> for HostStream {
    fn from(stream: UnixStream) -> HostStream {
        HostStream::Local(stream)
    }
}

impl HostStream {
    pub(super) fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            HostStream::Tcp(stream) => {
                // A small piece is mostly a question or an answer, which the other side waits for.
                let _ = stream.set_nodelay(true);
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf::Tcp(write))
            }
            HostStream::Local(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Local(read), WriteHalf::Local(write))
            }
        }
    }
}

/// The half that a host writes to.
pub(super) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Local(unix::OwnedReadHalf),
}

impl ReadHalf {
    /// Waits until something can be read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            ReadHalf::Tcp(read) => read.readable().await,
            ReadHalf::Local(read) => read.readable().await,
        }
    }

    /// Reads what is there; 0 at the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing is.
    pub(super) fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            ReadHalf::Tcp(read) => read.try_read_buf(buffer),
            ReadHalf::Local(read) => read.try_read_buf(buffer),
        }
    }
}

/// The half that a host reads from.
pub(super) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Local(unix::OwnedWriteHalf),
}

impl WriteHalf {
    /// Resets the connection to a host, also while the other half is held.
    pub(super) fn reset(self) {
        match self {
            WriteHalf::Tcp(write) => {
                // On failure the host sees an end.
                let _ = connect_unspec(write.as_ref());
                write.forget();
            }
            WriteHalf::Local(write) => drop(write),
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WriteHalf::Tcp(write) => Pin::new(write).poll_write(context, bytes),
            WriteHalf::Local(write) => Pin::new(write).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteHalf::Tcp(write) => Pin::new(write).poll_flush(context),
            WriteHalf::Local(write) => Pin::new(write).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteHalf::Tcp(write) => Pin::new(write).poll_shutdown(context),
            WriteHalf::Local(write) => Pin::new(write).poll_shutdown(context),
        }
    }
}
