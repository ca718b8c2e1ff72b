//! The server's order to the launcher, and the reports about it.

use std::os::fd::BorrowedFd;

use guest_protocol::{LAUNCH_LINE_BYTES_MAX, LaunchReport};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::refused::{At, Refused};

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
    serde_json::from_slice(&line).map_err(|_| Errno::BADMSG).at("understand the order")
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
