//! The launcher's own half: everything that needs the host's capabilities.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use guest_protocol::{CgroupDir, Launch, LaunchReport, Storage};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{Pid, Signal};

use super::child::{self, Given};
use super::descriptors::{Handed, open, own};
use super::divert::divert;
use super::go::{Sent, channel, go};
use super::mounts::{mounts, prepare_storage};
use super::order::report;
use super::process::{record, report_pid};
use super::refused::{At, Refused};
use super::syscall::{self, CloneFlags, Cloned};
use super::{nodes, privileges, shares, slot};

/// Number of ids that a box has of its own.
const IDS: u32 = 65_536;

/// Makes the box and sends "go" to its first process.
///
/// `filter` is the system call filter of the box.
pub(super) fn make(launch: &Launch, handed: &Handed, filter: Vec<libc::sock_filter>) -> Result<(), Refused> {
    let opened = launch.oom_events.as_deref().map(open_unnamed).transpose().at("open the count of memory kills")?;
    let (oom_events, oom_mount) = opened.unzip();
    let command_oom_score = privileges::end_before_the_server(launch.soft.memory_mb == 0)?;
    let cgroup = join_cgroups(&launch.cgroups)?;
    if launch.size_view.is_none() {
        limit_processors(launch.soft.vcpus)?;
    }
    if let Some(id) = launch.id_base {
        shares::become_owner(id)?;
    }
    let devices = if launch.id_base.is_some() { nodes::make()? } else { None };
    if devices.is_none() {
        report(handed.control.as_fd(), &LaunchReport::SharesDevices).at("report the devices")?;
    }
    let given = Given { oom_events, oom_mount: oom_mount.flatten(), devices, command_oom_score, filter };
    if let Some(slot) = &launch.slot {
        return slot::make(launch, slot, handed, given, cgroup);
    }
    let (ours, theirs) = channel()?;
    shares::bound_the_whole(launch)?;
    let flags = CloneFlags::USER.and(CloneFlags::BOX).and(CloneFlags::PARENT);
    match syscall::clone3(flags, 0, cgroup.as_ref().map(AsFd::as_fd)).at("make namespaces")? {
        Cloned::Child => {
            drop(ours);
            child::run(launch, handed, theirs, given)
        }
        Cloned::Parent(pid) => {
            drop(theirs);
            let outcome = leave_owner(launch, pid)
                .and_then(|namespace| send_off(launch, handed, pid, namespace.as_ref(), ours.as_fd()));
            if outcome.is_err() {
                // The process waits for the launcher, so its pid cannot have been reused.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            outcome
        }
    }
}

/// Opens the user namespace as the user who made it, and becomes root again.
fn leave_owner(launch: &Launch, pid: Pid) -> Result<Option<OwnedFd>, Refused> {
    if launch.id_base.is_none() {
        return Ok(None);
    }
    let user_namespace = open(&format!("/proc/{pid}/ns/user"), OFlags::RDONLY).at("open the user namespace")?;
    shares::become_root()?;
    Ok(Some(user_namespace))
}

fn send_off(
    launch: &Launch,
    handed: &Handed,
    pid: Pid,
    user_namespace: Option<&OwnedFd>,
    channel: BorrowedFd<'_>,
) -> Result<(), Refused> {
    map_ids(launch, pid)?;
    record(&launch.dir, pid)?;
    let mut sent = Sent::default();
    if let Some(user_namespace) = user_namespace {
        sent.mounts = mounts(launch, user_namespace.as_fd())?;
    } else if let Storage::Directory(dir) = &launch.storage {
        prepare_storage(launch, open(dir, OFlags::RDONLY | OFlags::DIRECTORY).at("open the box's storage")?.as_fd())?;
    }
    if launch.transparent {
        sent.diversion = Some(divert(pid)?);
    }
    report_pid(handed.control.as_fd(), pid)?;
    go(channel, &sent).at("start the box")
}

/// Opens a file for reading so that its link in `/proc` shows only the name: the box can read the
/// agent's links, and must not learn where its control group is on the host. Also returns the copy
/// of the mount that the file was opened through, if one could be made.
fn open_unnamed(path: &str) -> Result<(OwnedFd, Option<OwnedFd>), Errno> {
    let (dir, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match open_tree(CWD, dir, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC) {
        Ok(tree) => Ok((rustix::fs::openat(&tree, name, flags, Mode::empty()).and_then(own)?, Some(tree))),
        // Without privileges no mount of the host can be copied.
        Err(Errno::PERM) => Ok((open(path, flags).and_then(own)?, None)),
        Err(errno) => Err(errno),
    }
}

/// Joins the groups of version 1 and opens the one of version 2.
///
/// `0` into `tasks` moves this one thread; `cgroup.procs` would take a lock of the whole kernel,
/// which makes the slowest starts three times slower.
pub(super) fn join_cgroups(cgroups: &[CgroupDir]) -> Result<Option<OwnedFd>, Refused> {
    let mut unified = None;
    for cgroup in cgroups {
        if cgroup.v2 {
            let dir = open(&cgroup.path, OFlags::RDONLY | OFlags::DIRECTORY).at("open the control group")?;
            unified = Some(dir);
        } else {
            fs::write(format!("{}/tasks", cgroup.path), "0").at("join a control group")?;
        }
    }
    Ok(unified)
}

/// Limits the box to `vcpus` processors, where no control group does. The choice depends on the
/// pid, so that boxes do not crowd on the first processors.
pub(super) fn limit_processors(vcpus: u32) -> Result<(), Refused> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    if vcpus == 0 {
        return Ok(());
    }
    let all = sched_getaffinity(None).at("read the processors")?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let first = std::process::id() as usize;
    let mut chosen = CpuSet::new();
    for n in 0..usable.len().min(vcpus as usize) {
        chosen.set(usable[(first + n) % usable.len()]);
    }
    sched_setaffinity(None, &chosen).at("choose processors")
}

fn map_ids(launch: &Launch, pid: Pid) -> Result<(), Refused> {
    match launch.id_base {
        Some(base) => {
            write(pid, "uid_map", &format!("0 {base} {IDS}\n")).at("map the user ids")?;
            write(pid, "gid_map", &format!("0 {base} {IDS}\n")).at("map the group ids")
        }
        None => {
            let uid = rustix::process::getuid();
            let gid = rustix::process::getgid();
            write(pid, "setgroups", "deny").at("give up groups")?;
            write(pid, "uid_map", &format!("0 {uid} 1\n")).at("map the user id")?;
            write(pid, "gid_map", &format!("0 {gid} 1\n")).at("map the group id")
        }
    }
}

/// Writes a file of a process, in one write, as the kernel demands.
fn write(pid: Pid, file: &str, text: &str) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/{file}"))?.write_all(text.as_bytes())
}
