//! Connections of the host to a port of this machine's vsock.
//!
//! Source: `vsock(7)`.

#![expect(unsafe_code, reason = "no library in use knows the addresses of vsock")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, listen, socket_with};

/// Number of connections that wait to be accepted: one, and those of a server that begins anew.
const BACKLOG: i32 = 16;

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

/// Returns the machine at the other end.
fn peer(stream: BorrowedFd<'_>) -> io::Result<u32> {
    let mut address = libc::sockaddr_vm { svm_family: 0, svm_reserved1: 0, svm_port: 0, svm_cid: 0, svm_zero: [0; 4] };
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most one address of this size.
    let asked = unsafe { libc::getpeername(stream.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    if asked < 0 { Err(io::Error::last_os_error()) } else { Ok(address.svm_cid) }
}
