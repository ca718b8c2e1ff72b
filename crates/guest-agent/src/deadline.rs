//! The end that the box gives itself, should no server come back for it.

use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::descriptor;

/// About a hundred years, so that no sum of times overflows in the kernel.
const IN_MS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;

/// A timer on a clock that nobody sets and that goes on while the host sleeps.
#[derive(Debug)]
pub(crate) struct Deadline {
    timer: AsyncFd<OwnedFd>,
}

impl Deadline {
    /// A deadline `in_ms` from now.
    pub(crate) fn new(in_ms: u64) -> std::io::Result<Deadline> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let deadline = Deadline { timer: descriptor::readable(timer)? };
        deadline.set(in_ms)?;
        Ok(deadline)
    }

    /// Moves the deadline to `in_ms` from now.
    pub(crate) fn set(&self, in_ms: u64) -> std::io::Result<()> {
        let in_ms = in_ms.min(IN_MS_MAX);
        let tv_sec = i64::try_from(in_ms / 1000).unwrap_or(i64::MAX);
        // A time of nothing at all would switch the timer off.
        let tv_nsec = i64::try_from(in_ms % 1000 * 1_000_000).unwrap_or(0).max(1);
        let spec =
            Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: Timespec { tv_sec, tv_nsec } };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    /// Returns when the deadline has come.
    pub(crate) async fn wait(&self) -> std::io::Result<()> {
        let mut count = [0; 8];
        loop {
            let mut guard = self.timer.readable().await?;
            // Moving the deadline takes a ring back, and then there is nothing to read.
            if let Ok(read) = guard.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?)) {
                return read.map(drop);
            }
        }
    }
}
