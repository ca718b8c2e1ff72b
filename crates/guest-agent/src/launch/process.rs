//! The first process of a box or a slot, as the launcher sees and reports it.

use std::fs;
use std::io::Write;
use std::os::fd::BorrowedFd;

use guest_protocol::LaunchReport;
use rustix::io::Errno;
use rustix::process::Pid;

use super::order::report;
use super::refused::{At, Refused};

pub(super) fn report_pid(control: BorrowedFd<'_>, pid: Pid) -> Result<(), Refused> {
    let number = pid.as_raw_nonzero().get().unsigned_abs();
    report(control, &LaunchReport::Pid(number)).at("report the pid")
}

/// Records the pid of the first process in the box's directory, so that a later server finds it. The start time
/// distinguishes it from a later process with the same pid.
pub(super) fn record(dir: &str, pid: Pid) -> Result<(), Refused> {
    let started = start_time(pid)?;
    // The file may be there and is empty. To truncate it would make ext4 choose blocks as it is closed.
    let mut file = fs::OpenOptions::new();
    let file = file.write(true).create(true).truncate(false).open(format!("{dir}/pid"));
    file.and_then(|mut file| file.write_all(format!("{pid} {started}\n").as_bytes())).at("record the pid")
}

/// Returns the start time of a process, in clock ticks since boot.
pub(crate) fn start_time(pid: Pid) -> Result<u64, Refused> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).at("read the start time")?;
    // The name in parentheses may contain anything, so count from its end.
    let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    started.ok_or(Errno::BADMSG).at("read the start time")
}
