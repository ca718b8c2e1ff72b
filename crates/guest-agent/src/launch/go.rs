//! The "go" of the launcher to the first process of a box or a slot.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::refused::{At, Refused};

/// Maximum number of mounts sent to one box; the kernel passes 253 descriptors at once.
const MOUNTS_MAX: usize = 64;

/// Makes the socket pair between the launcher and the first process of the box or slot.
pub(super) fn channel() -> Result<(OwnedFd, OwnedFd), Refused> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).at("make a socket pair")
}

/// Sends "go" and the mounts to the child.
pub(super) fn go(channel: BorrowedFd<'_>, mounts: &[OwnedFd]) -> Result<(), Errno> {
    if mounts.len() > MOUNTS_MAX {
        return Err(Errno::TOOBIG);
    }
    let fds: Vec<BorrowedFd<'_>> = mounts.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOUNTS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::TOOBIG);
    }
    sendmsg(channel, &[IoSlice::new(b"go")], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Waits for "go" and returns the mounts that come with it.
pub(super) fn wait_for_go(channel: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOUNTS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0u8; 2];
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut word)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != word.len() || &word != b"go" {
        return Err(Errno::PIPE);
    }
    let mut mounts = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            mounts.extend(fds);
        }
    }
    Ok(mounts)
}
