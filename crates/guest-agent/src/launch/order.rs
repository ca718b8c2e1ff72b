//! The server's order to the launcher, and the reports about it.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use guest_protocol::{LAUNCH_LINE_BYTES_MAX, LAUNCH_LISTENER, LaunchReport};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::de::DeserializeOwned;

use super::descriptors::own;
use super::refused::{At, Refused};

/// Variable with the parameters of the agent.
pub(crate) const ORDER: &str = "TIDEBOX_AGENT";

/// Waits for the listening socket of the agent, which comes before the order; `None` if the server
/// has gone.
pub(super) fn receive_listener(control: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(control, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let listener = ancillary.drain().find_map(|message| {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message { descriptors.next() } else { None }
    });
    match listener {
        Some(listener) if byte == [LAUNCH_LISTENER] => own(listener).map(Some),
        _ => Err(Errno::BADMSG),
    }
}

/// Reads the order from the socket to the server.
pub(crate) fn read_order<T: DeserializeOwned>(control: BorrowedFd<'_>) -> Result<T, Refused> {
    let mut line = Vec::new();
    let mut piece = [0u8; 4096];
    while !line.ends_with(b"\n") {
        let n = rustix::io::read(control, &mut piece).at("read the order")?;
        if n == 0 || line.len() + n > LAUNCH_LINE_BYTES_MAX {
            return Err(Errno::BADMSG).at("read the order");
        }
        line.extend_from_slice(&piece[..n]);
    }
    serde_json::from_slice(&line).map_err(|_| Errno::BADMSG).at("parse the order")
}

pub(super) fn report(control: BorrowedFd<'_>, report: &LaunchReport) -> Result<(), Errno> {
    let mut line = serde_json::to_vec(report).map_err(|_| Errno::INVAL)?;
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        // A server that is gone must not end this process by a signal.
        let n = rustix::net::send(control, rest, rustix::net::SendFlags::NOSIGNAL)?;
        rest = &rest[n..];
    }
    Ok(())
}

pub(super) fn report_failure(control: BorrowedFd<'_>, refused: Refused) {
    let failed = LaunchReport::Failed { step: refused.step, errno: refused.errno.raw_os_error() };
    // If the server is gone, there is nowhere to report to.
    let _ = report(control, &failed);
}
