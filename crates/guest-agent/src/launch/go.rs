//! The "go" of the launcher to the first process of a box or a slot.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::descriptors::own;
use super::divert::Diversion;
use super::refused::{At, Refused};

/// Maximum number of mounts sent to one box; the kernel passes 253 descriptors at once.
const MOUNTS_MAX: usize = 64;
/// Maximum number of descriptors of a [`Diversion`].
const DIVERSION_MAX: usize = 5;
const DESCRIPTORS_MAX: usize = MOUNTS_MAX + DIVERSION_MAX;
/// First byte of the message.
const GO: u8 = b'g';

/// Makes the socket pair between the launcher and the first process of the box or slot.
pub(super) fn channel() -> Result<(OwnedFd, OwnedFd), Refused> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).at("make a socket pair")
}

/// Resources that come with "go".
#[derive(Default)]
pub(super) struct Sent {
    pub(super) mounts: Vec<OwnedFd>,
    pub(super) diversion: Option<Diversion>,
}

/// Sends "go" and the resources to the child.
pub(super) fn go(channel: BorrowedFd<'_>, sent: &Sent) -> Result<(), Errno> {
    let Sent { mounts, diversion } = sent;
    if mounts.len() > MOUNTS_MAX {
        return Err(Errno::TOOBIG);
    }
    let diversion = diversion.as_ref().map(Diversion::descriptors).unwrap_or_default();
    let fds: Vec<BorrowedFd<'_>> = mounts.iter().chain(diversion).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::TOOBIG);
    }
    // The second byte is the number of mounts.
    let word = [GO, u8::try_from(mounts.len()).map_err(|_| Errno::TOOBIG)?];
    sendmsg(channel, &[IoSlice::new(&word)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Waits for "go" and returns what comes with it.
pub(super) fn wait_for_go(channel: BorrowedFd<'_>) -> Result<Sent, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0u8; 2];
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut word)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != word.len() || word[0] != GO {
        return Err(Errno::PIPE);
    }
    let mut mounts = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            mounts.extend(fds);
        }
    }
    let rest = mounts.split_off(usize::from(word[1]).min(mounts.len()));
    if rest.is_empty() {
        return Ok(Sent { mounts, diversion: None });
    }
    // They stay open, while the agent's descriptors take the low numbers.
    let rest = rest.into_iter().map(own).collect::<Result<_, _>>()?;
    Ok(Sent { mounts, diversion: Some(Diversion::from_descriptors(rest).ok_or(Errno::BADF)?) })
}
