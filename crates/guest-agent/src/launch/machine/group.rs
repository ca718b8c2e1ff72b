//! Control group of the box in a machine: the agent is not in it.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread, pwrite};
use rustix::mount::mount;

use super::kernel::{PLAIN, make_dir};
use crate::launch::refused::{At, Refused};

/// Place of the control groups. No process of the box sees it.
const GROUPS: &str = "/groups";
/// Group of the box.
const BOX: &str = "/groups/box";
/// Bytes of the kernel's counts and states of a group that are enough to find one.
const EVENTS_BYTES: usize = 256;

/// Files of the group, which the agent keeps open.
#[derive(Debug)]
pub(crate) struct BoxGroup {
    dir: OwnedFd,
    freeze: OwnedFd,
    events: OwnedFd,
    pids_events: OwnedFd,
}

impl BoxGroup {
    /// Makes the group, with at most this many processes and threads.
    pub(super) fn make(most: u32) -> Result<BoxGroup, Refused> {
        const STEP: &str = "limit the processes, which needs a kernel with control groups (CONFIG_CGROUP_PIDS)";
        make_dir(GROUPS)?;
        mount("cgroup2", GROUPS, "cgroup2", PLAIN, None).at(STEP)?;
        // In one of its own a process could mount the groups, lift the bound, and stop the agent.
        match fs::write("/proc/sys/user/max_cgroup_namespaces", "0") {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at("forbid cgroup namespaces"),
            _ => {}
        }
        fs::write(format!("{GROUPS}/cgroup.subtree_control"), "+pids").at(STEP)?;
        make_dir(BOX)?;
        fs::write(format!("{BOX}/pids.max"), most.to_string()).at(STEP)?;
        Ok(BoxGroup {
            dir: open("", OFlags::PATH | OFlags::DIRECTORY).at(STEP)?,
            freeze: open("cgroup.freeze", OFlags::WRONLY).at(STEP)?,
            events: open("cgroup.events", OFlags::RDONLY).at(STEP)?,
            pids_events: open("pids.events", OFlags::RDONLY).at(STEP)?,
        })
    }

    /// Returns the file that counts the processes which the limit refused.
    pub(crate) fn pids_events(&self) -> &OwnedFd {
        &self.pids_events
    }

    /// Returns the directory of the group, in which processes can be started.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Asks the kernel to stop all processes of the group, or to have them go on.
    pub(crate) fn freeze(&self, is_frozen: bool) -> Result<(), Errno> {
        pwrite(&self.freeze, if is_frozen { b"1" } else { b"0" }, 0).map(drop)
    }

    /// Returns whether no process of the group runs.
    pub(crate) fn is_frozen(&self) -> Result<bool, Errno> {
        let mut events = [0; EVENTS_BYTES];
        let count = pread(&self.events, &mut events[..], 0)?;
        let events = events.get(..count).unwrap_or_default();
        Ok(events.split(|byte| *byte == b'\n').any(|line| line == b"frozen 1"))
    }
}

/// Opens a file of the group, or with an empty name its directory.
fn open(name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(format!("{BOX}/{name}"), flags | OFlags::CLOEXEC, Mode::empty())
}
