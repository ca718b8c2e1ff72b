//! Descriptors that the launcher and the processes that it makes get and hand on.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::syscall;

/// First number of the launcher's own descriptors, so that they never collide with those passed to
/// the agent.
pub(super) const OWN_FDS_FROM: i32 = 16;

/// Descriptors of the launcher that come from the server.
pub(super) struct Handed {
    pub(super) control: OwnedFd,
    pub(super) listener: OwnedFd,
    pub(super) agent: OwnedFd,
}

/// Moves the control socket and the agent's file, descriptors 0 and 2, to higher numbers.
pub(super) fn take_descriptors() -> Result<(OwnedFd, OwnedFd), Errno> {
    let taken = (own(std::io::stdin())?, own(std::io::stderr())?);
    // The socket must close when its last owner is gone, so no copy stays at 0.
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for number in 0..=2 {
        syscall::duplicate_to(&null, number)?;
    }
    Ok(taken)
}

/// Moves a descriptor to a number that the agent's descriptors do not use; copies a borrowed one.
pub(super) fn own(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(&fd, OWN_FDS_FROM)
}

pub(super) fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}
