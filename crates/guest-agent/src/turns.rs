//! Turns for system calls for which the kernel takes a lock of the whole host.
//!
//! The list of interfaces and the groups that a socket belongs to are protected by one lock of all
//! network namespaces, which the making of every box needs. With hundreds of processes waiting for
//! it, that takes seconds. So the filter of a box makes such a call wait here, and one after the
//! other continues. Programs do not notice: they ask for interfaces a few times in their lives.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::descriptor::readable;

/// Pause after each call: the kernel needs some microseconds for one, so all boxes of a host
/// together leave its lock free for most of the time.
const PAUSE: Duration = Duration::from_millis(2);

/// The ioctl numbers `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`.
const RECEIVE: libc::Ioctl = 0xc050_2100u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101u32 as libc::Ioctl;
/// The flag `SECCOMP_USER_NOTIF_FLAG_CONTINUE`. The filter has already decided what the call may
/// do, so nothing depends on arguments that its process might change meanwhile.
const CONTINUE: u32 = 1;

/// The kernel's `struct seccomp_notif`, of which only the id matters here.
#[repr(C)]
struct Call {
    id: u64,
    rest: [u64; 9],
}

/// The kernel's `struct seccomp_notif_resp`.
#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// Lets one call after the other continue, until the listener fails.
pub(crate) async fn give(listener: OwnedFd) {
    let Ok(listener) = readable(listener) else { return };
    while next(&listener).await.is_ok() {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a call and lets it continue.
async fn next(listener: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut ready = listener.readable().await?;
        // Receiving blocks where there is no call.
        if !has_call(listener.get_ref())? {
            ready.clear_ready();
            continue;
        }
        match receive(listener.get_ref()) {
            Ok(id) => return let_go_on(listener.get_ref(), id),
            // The calling process has ended.
            Err(Errno::NOENT | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn has_call(listener: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(fds[0].revents().contains(PollFlags::IN))
}

fn receive(listener: &OwnedFd) -> Result<u64, Errno> {
    const { assert!(size_of::<Call>() == 80) };
    let mut call = Call { id: 0, rest: [0; 9] };
    #[expect(unsafe_code, reason = "no library offers this ioctl")]
    // SAFETY: the kernel writes one seccomp_notif, whose size is asserted above.
    let received = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RECEIVE, &raw mut call) };
    if received < 0 { Err(last_error()) } else { Ok(call.id) }
}

fn let_go_on(listener: &OwnedFd, id: u64) -> io::Result<()> {
    const { assert!(size_of::<Answer>() == 24) };
    let answer = Answer { id, value: 0, error: 0, flags: CONTINUE };
    #[expect(unsafe_code, reason = "no library offers this ioctl")]
    // SAFETY: the kernel reads one seccomp_notif_resp, whose size is asserted above.
    let sent = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SEND, &raw const answer) };
    match if sent < 0 { Err(last_error()) } else { Ok(()) } {
        // The calling process has ended meanwhile.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
