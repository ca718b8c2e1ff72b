//! The launcher's own half: everything that needs the host's capabilities.

use std::fs;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use guest_protocol::{Launch, LaunchReport, Storage};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    open_tree,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal};

use super::child::{self, Given};
use super::syscall::{self, CloneFlags, Cloned};
use super::{At, Handed, Refused, nodes, own, privileges, report, shares, slot};

/// Number of ids that a box has of its own.
const IDS: u32 = 65_536;
/// Maximum number of mounts sent to one box; the kernel passes 253 descriptors at once.
pub(super) const MOUNTS_MAX: usize = 64;

/// Makes the box and sends "go" to its first process.
pub(super) fn make(launch: &Launch, handed: &Handed) -> Result<(), Refused> {
    let opened = launch.oom_events.as_deref().map(open_unnamed).transpose().at("open the count of memory kills")?;
    let (oom_events, oom_mount) = opened.unzip();
    privileges::end_before_the_server()?;
    let cgroup = join_cgroups(launch)?;
    limit_processors(launch.soft.vcpus)?;
    if let Some(id) = launch.id_base {
        shares::become_owner(id)?;
    }
    let devices = if launch.id_base.is_some() { nodes::make()? } else { None };
    if devices.is_none() {
        report(handed.control.as_fd(), &LaunchReport::SharesDevices).at("report the devices")?;
    }
    let given = Given { oom_events, oom_mount: oom_mount.flatten(), devices };
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
    record(launch, pid)?;
    let mut all = Vec::new();
    if let Some(user_namespace) = user_namespace {
        all = mounts(launch, user_namespace.as_fd())?;
    } else if let Storage::Directory(dir) = &launch.storage {
        prepare_storage(launch, open(dir, OFlags::RDONLY | OFlags::DIRECTORY).at("open the box's storage")?.as_fd())?;
    }
    report_pid(handed, pid)?;
    go(channel, &all).at("tell the box to go")
}

/// Makes the socket pair between the launcher and the first process of the box or slot.
pub(super) fn channel() -> Result<(OwnedFd, OwnedFd), Refused> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).at("make a socket pair")
}

/// Returns detached mounts of all layers and of the storage, with the ids of a user namespace.
pub(super) fn mounts(launch: &Launch, user_namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Refused> {
    let layers = launch.overlays.iter().flat_map(|overlay| &overlay.lower);
    let mut mounts = layers.map(|lower| lower_mount(lower, user_namespace)).collect::<Result<Vec<_>, _>>()?;
    mounts.extend(storage_mount(launch)?);
    Ok(mounts)
}

pub(super) fn report_pid(handed: &Handed, pid: Pid) -> Result<(), Refused> {
    let number = pid.as_raw_nonzero().get().unsigned_abs();
    report(handed.control.as_fd(), &LaunchReport::Pid(number)).at("report the pid")
}

pub(super) fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
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
fn join_cgroups(launch: &Launch) -> Result<Option<OwnedFd>, Refused> {
    let mut unified = None;
    for cgroup in &launch.cgroups {
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
    let write = |file: &str, text: String| {
        // One write, as the kernel demands.
        fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/{file}"))?.write_all(text.as_bytes())
    };
    match launch.id_base {
        Some(base) => {
            write("uid_map", format!("0 {base} {IDS}\n")).at("map the user ids")?;
            write("gid_map", format!("0 {base} {IDS}\n")).at("map the group ids")
        }
        None => {
            let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
            write("setgroups", "deny".to_owned()).at("give up groups")?;
            write("uid_map", format!("0 {uid} 1\n")).at("map the user id")?;
            write("gid_map", format!("0 {gid} 1\n")).at("map the group id")
        }
    }
}

/// Records the pid of the first process, so that a later server finds it. The start time
/// distinguishes it from a later process with the same pid.
pub(super) fn record(launch: &Launch, pid: Pid) -> Result<(), Refused> {
    let started = start_time(pid)?;
    fs::write(format!("{}/pid", launch.dir), format!("{pid} {started}\n")).at("record the pid")
}

/// Returns the start time of a process, in clock ticks since boot.
pub(crate) fn start_time(pid: Pid) -> Result<u64, Refused> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).at("read the start time")?;
    // The name in parentheses may contain anything, so count from its end.
    let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    started.ok_or(Errno::BADMSG).at("read the start time")
}

/// Returns a detached mount of a host directory that shows host root's files as the box's.
fn lower_mount(path: &str, user_namespace: BorrowedFd<'_>) -> Result<OwnedFd, Refused> {
    let mount =
        open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC).at("take a layer")?;
    syscall::idmap_mount(&mount, user_namespace).at("map the ids of a layer")?;
    Ok(mount)
}

/// Returns a detached mount of the box's storage; `None` if the box makes it.
fn storage_mount(launch: &Launch) -> Result<Option<OwnedFd>, Refused> {
    let mount = match &launch.storage {
        Storage::TmpfsMb(_) => return Ok(None),
        Storage::Directory(dir) => {
            open_tree(CWD, dir.as_str(), OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
                .at("take the box's storage")?
        }
        Storage::Image(file) => image_mount(file)?,
    };
    prepare_storage(launch, mount.as_fd())?;
    Ok(Some(mount))
}

/// Mounts an image without attaching it anywhere on the host: the mount, and the loop device below
/// it, end with the box.
fn image_mount(file: &str) -> Result<OwnedFd, Refused> {
    let image = open(file, OFlags::RDWR).at("open the box's image")?;
    let (_device, path) = syscall::attach_loop(&image).at("attach the box's image")?;
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).at("mount the box's image")?;
    fsconfig_set_string(context.as_fd(), "source", path.as_c_str()).at("mount the box's image")?;
    fsconfig_create(context.as_fd()).at("mount the box's image")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).at("mount the box's image")
}

/// Makes the directories that the overlays need, owned by the box's root.
fn prepare_storage(launch: &Launch, storage: BorrowedFd<'_>) -> Result<(), Refused> {
    let own = |path: &str| match launch.id_base {
        Some(base) => {
            let (uid, gid) = (Uid::from_raw(base), Gid::from_raw(base));
            rustix::fs::chownat(storage, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)
        }
        None => Ok(()),
    };
    own("").at("own the box's storage")?;
    for overlay in &launch.overlays {
        for path in [overlay.name.clone(), format!("{}/upper", overlay.name), format!("{}/work", overlay.name)] {
            match rustix::fs::mkdirat(storage, path.as_str(), Mode::from_raw_mode(0o755)) {
                // The server may have made them in advance.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).at("make the box's storage"),
            }
            own(&path).at("own the box's storage")?;
        }
    }
    Ok(())
}

/// Sends "go" and the mounts to the child.
pub(super) fn go(channel: BorrowedFd<'_>, mounts: &[OwnedFd]) -> Result<(), Errno> {
    if mounts.len() > MOUNTS_MAX {
        return Err(Errno::TOOBIG);
    }
    let fds: Vec<BorrowedFd<'_>> = mounts.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOUNTS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::TOOBIG);
    }
    sendmsg(channel, &[IoSlice::new(b"go")], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}
