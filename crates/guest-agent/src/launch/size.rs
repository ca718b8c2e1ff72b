//! The size of a box as its programs see it: `/sys`, and files of `/proc`.
//!
//! Programs choose the size of their heaps and the number of their threads by what they find there. The
//! files are in a tmpfs of the box, and their mounts are read-only; the agent alone has descriptors to
//! write to two of them.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use guest_protocol::{GroupView, SizeView};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

use super::descriptors::{open, own};
use super::mount_point::make_dir;
use super::refused::{At, Refused};
use super::syscall;
use crate::size::{cpuinfo, list, meminfo, stat};

const STEP: &str = "show the size of the box";
const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Directories of `/sys`.
const DIRS: [&str; 6] =
    ["sys", "sys/fs", "sys/fs/cgroup", "sys/devices", "sys/devices/system", "sys/devices/system/cpu"];

/// Files that show the size of a box.
pub(super) struct Shown {
    /// Place of the mount for `/sys`.
    pub(super) sys: String,
    /// Content of `/proc/meminfo`, to be written to.
    pub(super) meminfo: OwnedFd,
    /// Content of `/proc/stat`, to be written to.
    pub(super) stat: OwnedFd,
}

/// Makes `/sys` below `stage`, and covers files of `proc`. `empty` is a directory without content.
pub(super) fn show(view: &SizeView, stage: &str, proc: &str, empty: &str) -> Result<Shown, Refused> {
    let files = format!("{stage}/size");
    make_dir(&files)?;
    let shown = Shown {
        meminfo: make_kept_file(&files, "meminfo", &meminfo(view.memory_mb, None)).at(STEP)?,
        stat: make_kept_file(&files, "stat", &stat(&view.processors, view.kernel_started, None)).at(STEP)?,
        sys: format!("{stage}/sys"),
    };
    make_file(&files, "cpuinfo", &cpuinfo(&view.cpuinfo, &view.processors)).at(STEP)?;
    for dir in DIRS {
        make_dir(&format!("{files}/{dir}"))?;
    }
    for group in view.groups.iter().filter(|group| !group.controllers.is_empty()) {
        make_dir(&format!("{files}/sys/fs/cgroup/{}", group.controllers))?;
    }
    // Programs with a place for each processor number must have one for every number that the kernel can
    // tell them, so `possible` is that of the host.
    let highest = view.highest_processor;
    let cpu = format!("{files}/sys/devices/system/cpu");
    make_file(&cpu, "online", &format!("{}\n", list(&view.processors))).at(STEP)?;
    make_file(&cpu, "possible", &format!("0-{highest}\n")).at(STEP)?;
    make_file(&cpu, "kernel_max", &format!("{highest}\n")).at(STEP)?;
    std::fs::hard_link(format!("{cpu}/online"), format!("{cpu}/present")).at(STEP)?;
    mount_bind(&files, &files).at(STEP)?;
    mount_remount(&files, PLAIN | MountFlags::BIND | MountFlags::RDONLY, c"").at(STEP)?;
    // Each copy of the mount is read-only as well.
    for name in ["meminfo", "stat", "cpuinfo"] {
        mount_bind(format!("{files}/{name}"), format!("{proc}/{name}")).at(STEP)?;
    }
    make_dir(&shown.sys)?;
    mount_bind(format!("{files}/sys"), &shown.sys).at(STEP)?;
    show_groups(&format!("{}/fs/cgroup", shown.sys), &view.groups, empty);
    let all = open(&shown.sys, OFlags::PATH).at(STEP)?;
    syscall::make_read_only(&all).at(STEP)?;
    Ok(shown)
}

fn make_file(dir: &str, name: &str, text: &str) -> std::io::Result<File> {
    let mut file = File::options().read(true).write(true).create_new(true).open(format!("{dir}/{name}"))?;
    file.write_all(text.as_bytes()).map(|()| file)
}

/// Makes a file whose descriptor the agent gets.
fn make_kept_file(dir: &str, name: &str, text: &str) -> std::io::Result<OwnedFd> {
    Ok(own(make_file(dir, name, text)?)?)
}

/// Mounts the box's own group of each hierarchy, as the kernel shows it in the box's namespace of control
/// groups. Where the kernel refuses that, programs find no limit, as in a box without groups.
///
/// A mount of the whole hierarchy in that namespace would show the same, but each is a file system of its
/// own, which takes longer to make and to end.
fn show_groups(target: &str, groups: &[GroupView], empty: &str) {
    for GroupView { controllers, dir, covered } in groups {
        let target = if controllers.is_empty() { target.to_owned() } else { format!("{target}/{controllers}") };
        let mounted = mount_bind(dir, &target);
        // Without its cover, a group that others share must not be seen.
        if mounted.is_ok() && *covered && mount_bind(empty, &target).is_err() {
            let _ = unmount(&target, UnmountFlags::DETACH);
        }
    }
}
