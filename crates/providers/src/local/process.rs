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

/// Pause between two looks at a process that is being stopped.
const STOP_LOOK: Duration = Duration::from_millis(1);
/// Option of `waitid` to include children that do not signal their end, as those of the launcher.
const WALL: u32 = 0x4000_0000;

/// Flag of a process that ends, as the kernel shows it.
const EXITING: u64 = 0x4;
/// Bit of the signal that ends every process among those that wait to be delivered.
const KILL_BIT: u64 = 1 << 8;

/// Process held by a descriptor, which stays valid when its number is used again.
#[derive(Debug)]
pub struct Process {
    fd: AsyncFd<OwnedFd>,
    /// Its number, which is its own until it is reaped.
    pid: u32,
}

impl Process {
    /// Finds the process with this number and start time; `None` if it has ended. Must be called
    /// within a runtime.
    pub(crate) fn find(number: u32, started: u64) -> std::io::Result<Option<Process>> {
        let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Read after opening: the process that the descriptor holds can no longer change.
        if start_time(pid) != Some(started) {
            return Ok(None);
        }
        #[expect(deprecated, reason = "its heir is unsafe; an `OwnedFd` keeps the promise that it asks for")]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Some(Process { fd, pid: number }))
    }

    pub(crate) fn kill(&self) -> std::io::Result<()> {
        match self.signal(Signal::KILL) {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Lets the process go on if it was stopped.
    pub(crate) fn go_on(&self) -> std::io::Result<()> {
        Ok(self.signal(Signal::CONT)?)
    }

    /// Stops all threads of the process where they are. Returns false if one has not stopped within `limit`;
    /// then all go on.
    pub(crate) async fn stop(&self, limit: Duration) -> std::io::Result<bool> {
        self.signal(Signal::STOP)?;
        let stopped = async {
            loop {
                match self.has_stopped() {
                    Ok(false) => tokio::time::sleep(STOP_LOOK).await,
                    done => break done,
                }
            }
        };
        let stopped = tokio::time::timeout(limit, stopped).await.unwrap_or(Ok(false));
        if !matches!(stopped, Ok(true)) {
            self.go_on()?;
        }
        stopped
    }

    /// Returns whether all of its threads are stopped.
    fn has_stopped(&self) -> std::io::Result<bool> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            // The name in parentheses may contain anything.
            if !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn signal(&self, signal: Signal) -> Result<(), Errno> {
        pidfd_send_signal(self.fd.get_ref(), signal)
    }

    /// Returns whether the process has ended, reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(self.fd.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether the process has ended or is about to: it has a signal that ends it. A process that has a
    /// namespace of processes ends after all others in the namespace, so that this can be seen long before.
    pub(crate) fn is_ending(&self) -> bool {
        if self.has_ended() {
            return true;
        }
        // Not reaped, so that the number is its own. What cannot be read counts as running.
        fs::read_to_string(format!("/proc/{}/stat", self.pid)).is_ok_and(|stat| stat_is_ending(&stat))
    }

    /// Waits until the process has ended, and reaps it if it is a child of this server.
    pub(crate) async fn ended(&self) {
        // An error means that the runtime is shutting down.
        let _ = self.fd.readable().await;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::from_bits_retain(WALL);
        // Fails for a child of another server, and for one that was reaped before.
        let _ = waitid(WaitId::PidFd(self.fd.get_ref().as_fd()), options);
    }

    /// Waits like [`Process::ended`], for at most `limit`. Returns whether the process has ended.
    pub(crate) async fn ended_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.ended()).await.is_ok()
    }
}

/// Returns the start time of a process, in clock ticks since boot; `None` if it is gone.
fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may contain anything, so fields are counted from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Returns a process and all its descendants.
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
        // Taken out, so that reused numbers make no cycle.
        let more = children.remove(pid).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    found
}

/// Returns the current parent of a process.
fn parent(process: &Path) -> Option<u32> {
    let stat = fs::read(process.join("stat")).ok()?;
    // The name before it may contain anything.
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[after + 1..]).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns whether `/proc/<pid>/stat` is that of a process that ends.
fn stat_is_ending(stat: &str) -> bool {
    // The name in parentheses may contain anything.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    fields.first().is_some_and(|state| matches!(*state, "Z" | "X"))
        || number(&fields, 6).is_some_and(|flags| flags & EXITING != 0)
        || number(&fields, 28).is_some_and(|signals| signals & KILL_BIT != 0)
}

/// Returns a field of `/proc/<pid>/stat` as a number. The state has the index 0.
pub(super) fn number(fields: &[&str], index: usize) -> Option<u64> {
    fields.get(index)?.parse().ok()
}
