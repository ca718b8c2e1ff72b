//! The deadline at which the box ends itself unless a server extends it.

use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::descriptor;

/// About a hundred years, so that no sum of times overflows in the kernel.
const IN_MS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;

/// A timer on a clock that cannot be set and that goes on while the host sleeps.
#[derive(Debug)]
pub(crate) struct Deadline {
    timer: AsyncFd<OwnedFd>,
}

impl Deadline {
    /// Starts a deadline `in_ms` milliseconds from now.
    pub(crate) fn new(in_ms: u64) -> std::io::Result<Deadline> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let deadline = Deadline { timer: descriptor::readable(timer)? };
        deadline.set(in_ms)?;
        Ok(deadline)
    }

    /// Moves the deadline to `in_ms` milliseconds from now.
    pub(crate) fn set(&self, in_ms: u64) -> std::io::Result<()> {
        let in_ms = in_ms.min(IN_MS_MAX);
        let tv_sec = i64::try_from(in_ms / 1000).unwrap_or(i64::MAX);
        // A time of zero would disarm the timer.
        let tv_nsec = i64::try_from(in_ms % 1000 * 1_000_000).unwrap_or(0).max(1);
        let spec =
            Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: Timespec { tv_sec, tv_nsec } };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    /// Waits until the deadline.
    pub(crate) async fn wait(&self) -> std::io::Result<()> {
        let mut count = [0; 8];
        loop {
            let mut guard = self.timer.readable().await?;
            // Moving the deadline after it fired resets the timer, and then there is nothing to
            // read.
            if let Ok(read) = guard.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?)) {
                return read.map(drop);
            }
        }
    }
}
