//! Count of the processes and threads that the limit of the box refused.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

/// Places of the count in the box, in version 2 of control groups and in version 1.
const FILES: [&str; 2] = ["/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events"];
/// Size of the buffer, far more than the file has.
const FILE_BYTES_MAX: usize = 256;

/// Opens the count of the box's own group; `None` if the box sees no such group.
pub(crate) fn open_events() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    FILES.iter().find_map(|path| rustix::fs::open(*path, flags, Mode::empty()).ok())
}

/// Returns how often the limit refused a process or a thread; 0 without a file that counts.
pub(crate) fn refusals(events: Option<&OwnedFd>) -> u64 {
    let mut buffer = [0; FILE_BYTES_MAX];
    let read = events.and_then(|fd| rustix::io::pread(fd, &mut buffer[..], 0).ok());
    let text = read.and_then(|len| std::str::from_utf8(buffer.get(..len)?).ok());
    text.and_then(|text| text.lines().find_map(|line| line.strip_prefix("max ")?.trim().parse().ok())).unwrap_or(0)
}
