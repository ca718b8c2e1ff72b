//! The first process of a box, seen from the host.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Also wait for children that do not signal their end, as those of the launcher.
const WALL: u32 = 0x4000_0000;

/// Holds a process by descriptor, so that its number may be used again.
#[derive(Debug)]
pub(crate) struct Process {
    fd: AsyncFd<OwnedFd>,
}

impl Process {
    /// The process with this number, if it is the one that started then.
    /// `None` if that one has ended. Must be called within a runtime.
    pub(crate) fn find(pid: u32, started: u64) -> std::io::Result<Option<Process>> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Read after opening: what the descriptor holds can no longer change.
        if start_time(pid) != Some(started) {
            return Ok(None);
        }
        #[expect(deprecated, reason = "its heir is unsafe; an `OwnedFd` keeps the promise that it asks for")]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Some(Process { fd }))
    }

    pub(crate) fn kill(&self) -> std::io::Result<()> {
        match pidfd_send_signal(self.fd.get_ref(), Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it has ended, reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(self.fd.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits until it has ended, and takes its exit if it is a child of ours, so
    /// that no zombie stays.
    pub(crate) async fn ended(&self) {
        // An error would mean that the runtime is going down.
        let _ = self.fd.readable().await;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::from_bits_retain(WALL);
        // Another server's child is not ours to take, and is taken once only.
        let _ = waitid(WaitId::PidFd(self.fd.get_ref().as_fd()), options);
    }

    /// Like [`Process::ended`], but gives up after `limit`.
    pub(crate) async fn ended_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.ended()).await.is_ok()
    }
}

/// When a process started, in clock ticks since boot; `None` if it is no more.
fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Returns a process and all that come from it.
pub(crate) fn descendants(first: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent(&entry.path()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        // Taken out, so that numbers that were used again meanwhile make no circle.
        let more = children.remove(pid).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    found
}

/// Returns the parent that a process has now.
fn parent(process: &Path) -> Option<u32> {
    let stat = fs::read(process.join("stat")).ok()?;
    // The name before it may hold anything.
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[after + 1..]).ok()?.split_whitespace().nth(1)?.parse().ok()
}
