//! Connections of the host to a port of this machine's vsock.
//!
//! Source: `vsock(7)`.

#![expect(unsafe_code, reason = "no library in use knows the addresses of vsock")]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, listen, socket_with};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of connections that wait to be accepted: one, and those of a server that begins anew.
const BACKLOG: i32 = 16;

/// Largest write, in bytes. The kernel copies it into one piece of memory, which it always finds up to 32 KiB, those
/// of its own around it included; a larger one fails with `ENOMEM` where memory is short.
const WRITE_BYTES_MAX: usize = 28 * 1024;
/// Most pieces of a write.
const PIECES_MAX: usize = 8;

/// Listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Listens on `port`, in blocking mode.
    ///
    /// # Errors
    /// Those of the system: this kernel has no vsock, or the port is taken.
    pub(crate) fn bind(port: u32) -> io::Result<Listener> {
        let family = libc::sa_family_t::try_from(libc::AF_VSOCK).map_err(io::Error::other)?;
        let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let address = libc::sockaddr_vm {
            svm_family: family,
            svm_reserved1: 0,
            svm_port: port,
            svm_cid: libc::VMADDR_CID_ANY,
            svm_zero: [0; 4],
        };
        let len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
        // SAFETY: the kernel reads one address of this size.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        listen(&socket, BACKLOG)?;
        Ok(Listener { socket })
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> OwnedFd {
        listener.socket
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Accepts the next connection to a listening socket, with these flags; `None` for one that is not of
/// the host.
///
/// # Errors
/// Those of the system.
pub(crate) fn accept(listener: impl AsFd, flags: SocketFlags) -> io::Result<Option<OwnedFd>> {
    let stream = accept_with(listener, flags)?;
    Ok((peer(stream.as_fd())? == libc::VMADDR_CID_HOST).then_some(stream))
}

/// Connection `S` with a bound on each write.
#[derive(Debug)]
pub(crate) struct Pieces<S> {
    stream: S,
    /// Largest write, in bytes; `None` for any.
    most: Option<usize>,
}

impl<S> Pieces<S> {
    /// Makes one of pieces for which the kernel finds memory, if the connection is one of the vsock.
    pub(crate) fn new(stream: S, is_vsock: bool) -> Pieces<S> {
        Pieces { stream, most: is_vsock.then_some(WRITE_BYTES_MAX) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pieces<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pieces<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = self.most.and_then(|most| bytes.get(..most)).unwrap_or(bytes);
        pin!(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(mut left) = self.most else { return pin!(&mut self.stream).poll_write_vectored(context, pieces) };
        let mut some = [IoSlice::new(&[]); PIECES_MAX];
        for (to, piece) in some.iter_mut().zip(pieces) {
            let part = piece.get(..left).unwrap_or(piece);
            *to = IoSlice::new(part);
            left -= part.len();
        }
        pin!(&mut self.stream).poll_write_vectored(context, &some)
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

/// Returns the machine at the other end.
fn peer(stream: BorrowedFd<'_>) -> io::Result<u32> {
    let mut address = libc::sockaddr_vm { svm_family: 0, svm_reserved1: 0, svm_port: 0, svm_cid: 0, svm_zero: [0; 4] };
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most one address of this size.
    let asked = unsafe { libc::getpeername(stream.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    if asked < 0 { Err(io::Error::last_os_error()) } else { Ok(address.svm_cid) }
}

#[cfg(test)]
mod test {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn writes_are_small_and_nothing_is_lost_or_moved() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
        for lens in [&[100_000][..], &[9, 99_991], &[30_000, 40_000, 30_000], &[10_000; 10], &[5_000; 20]] {
            let (to, mut from) = tokio::net::UnixStream::pair().unwrap();
            let mut to = Pieces::new(to, true);
            assert!(to.is_write_vectored());
            let (mut sent, mut got) = (0, Vec::new());
            while sent < bytes.len() {
                let mut at = 0;
                let pieces: Vec<IoSlice<'_>> = lens
                    .iter()
                    .filter_map(|len| {
                        let piece = &bytes[at.max(sent).min(at + len)..at + len];
                        at += len;
                        (!piece.is_empty()).then(|| IoSlice::new(piece))
                    })
                    .collect();
                let written = match &pieces[..] {
                    [piece] => to.write(piece).await.unwrap(),
                    pieces => to.write_vectored(pieces).await.unwrap(),
                };
                assert!((1..=WRITE_BYTES_MAX).contains(&written), "{lens:?}: {written}");
                let before = got.len();
                got.resize(before + written, 0);
                from.read_exact(&mut got[before..]).await.unwrap();
                sent += written;
            }
            assert!(got == bytes, "{lens:?}");
        }
    }
}
