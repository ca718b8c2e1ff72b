//! Descriptors passed by number, and descriptors to wait for.

#![expect(unsafe_code, reason = "numbers of descriptors and their registration have no safe interface")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::FdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// First descriptor that is not a standard stream.
const FIRST: RawFd = 3;

/// Takes ownership of a descriptor that the command line names. Must be called before anything else
/// is opened, and once for each. No command inherits it.
///
/// # Errors
/// If it is a standard stream or not open.
pub(crate) fn take(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < FIRST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only borrowed to ask the kernel whether it is open.
    rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and the process that started this one opened it for this one alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Duplicates a standard stream to a number that no command gets, in non-blocking mode.
///
/// # Errors
/// If it is not open.
pub(crate) fn standard(stream: &dyn AsFd) -> io::Result<OwnedFd> {
    let fd = rustix::io::fcntl_dupfd_cloexec(stream.as_fd(), FIRST)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

/// Returns a pidfd of the process that connected to a unix socket; unlike a pid it never means
/// another process.
///
/// # Errors
/// If the kernel does not support it, or the process has ended and been waited for.
pub(crate) fn peer_process(socket: &impl AsFd) -> io::Result<OwnedFd> {
    let mut process: RawFd = -1;
    let mut len = libc::socklen_t::try_from(size_of::<RawFd>()).map_err(io::Error::other)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes one number of this length.
    let asked = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, (&raw mut process).cast(), &raw mut len)
    };
    if asked < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

/// Registers a descriptor so that its reader is woken.
///
/// # Errors
/// If the kernel has no memory for it.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is the same open descriptor for as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
