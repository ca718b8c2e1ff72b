//! The size of a box as its programs see it: `/sys`, and files of `/proc`.
//!
//! Programs choose the size of their heaps and the number of their threads by what they find there. The
//! files are in a tmpfs of the box, and their mounts are read-only; the agent alone has descriptors to
//! write to two of them.

use std::fs;
use std::os::fd::OwnedFd;

use guest_protocol::{GroupView, SizeView};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::descriptors::{open, own};
use super::mount_point::{make_dir, mount_options};
use super::refused::{At, Refused};
use crate::size::{cpuinfo, list, meminfo, stat};

const STEP: &str = "show the size of the box";
const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
/// Directories of `/sys`.
const DIRS: [&str; 6] = ["", "/fs", "/fs/cgroup", "/devices", "/devices/system", "/devices/system/cpu"];

/// Files that show the size of a box.
pub(super) struct Shown {
    /// Place of the mount for `/sys`.
    pub(super) sys: String,
    /// Content of `/proc/meminfo`, to be written to.
    pub(super) meminfo: OwnedFd,
    /// Content of `/proc/stat`, to be written to.
    pub(super) stat: OwnedFd,
}

/// Makes `/sys` below `stage`, and covers files of `proc`.
pub(super) fn show(view: &SizeView, stage: &str, proc: &str) -> Result<Shown, Refused> {
    let (files, sys) = (format!("{stage}/size"), format!("{stage}/sys"));
    make_dir(&files)?;
    let write = |name: &str, text: String| fs::write(format!("{files}/{name}"), text).at(STEP);
    write("meminfo", meminfo(view.memory_mb, None))?;
    write("cpuinfo", cpuinfo(&view.cpuinfo, &view.processors))?;
    write("stat", stat(&view.processors, view.kernel_started, None))?;
    make_sys(&format!("{files}/sys"), view)?;
    let opened = |name: &str| open(&format!("{files}/{name}"), OFlags::RDWR).and_then(own).at(STEP);
    let shown = Shown { meminfo: opened("meminfo")?, stat: opened("stat")?, sys };
    mount_bind(&files, &files).at(STEP)?;
    mount_remount(&files, PLAIN | MountFlags::BIND | MountFlags::RDONLY, c"").at(STEP)?;
    // Each copy of the mount is read-only as well.
    for name in ["meminfo", "cpuinfo", "stat"] {
        mount_bind(format!("{files}/{name}"), format!("{proc}/{name}")).at(STEP)?;
    }
    make_dir(&shown.sys)?;
    mount_bind(format!("{files}/sys"), &shown.sys).at(STEP)?;
    show_groups(&format!("{}/fs/cgroup", shown.sys), &view.groups);
    Ok(shown)
}

fn make_sys(sys: &str, view: &SizeView) -> Result<(), Refused> {
    for dir in DIRS {
        make_dir(&format!("{sys}{dir}"))?;
    }
    let version_1 = view.groups.iter().filter(|group| !group.controllers.is_empty());
    for group in version_1 {
        make_dir(&format!("{sys}/fs/cgroup/{}", group.controllers))?;
    }
    let own = list(&view.processors);
    let all = format!("0-{}\n", view.highest_processor);
    // Programs with a place for each processor number must have one for every number that the kernel can
    // tell them, so `possible` is that of the host.
    let texts = [
        ("online", &own),
        ("present", &own),
        ("possible", &all),
        ("kernel_max", &format!("{}\n", view.highest_processor)),
    ];
    for (name, text) in texts {
        fs::write(format!("{sys}/devices/system/cpu/{name}"), text).at(STEP)?;
    }
    Ok(())
}

/// Mounts what the namespace of control groups has of each hierarchy: the box's own group and nothing
/// above it. Where the kernel refuses that, programs find no limit, as in a box without groups.
fn show_groups(target: &str, groups: &[GroupView]) {
    for GroupView { controllers, covered } in groups {
        let mounted = if controllers.is_empty() {
            mount("cgroup2", target, "cgroup2", PLAIN | MountFlags::RDONLY, None)
        } else {
            let target = format!("{target}/{controllers}");
            let Ok(options) = mount_options(controllers.clone()) else { continue };
            let mounted = mount("cgroup", &target, "cgroup", PLAIN | MountFlags::RDONLY, options.as_c_str());
            if *covered && mounted.is_ok() { cover(&target) } else { mounted }
        };
        // Without its cover, a group that others share must not be seen.
        if mounted.is_err() && *covered {
            let _ = rustix::mount::unmount(format!("{target}/{controllers}"), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn cover(target: &str) -> Result<(), rustix::io::Errno> {
    mount("tmpfs", target, "tmpfs", PLAIN | MountFlags::RDONLY, c"nr_inodes=1,mode=0555")
}

/// Has the processes of the box start on these processors. They may leave them: a control group or the
/// share of all boxes bounds what they take. Where that is refused, the box sees more processors than it
/// has.
pub(super) fn start_on(processors: &[u32]) {
    let mut chosen = CpuSet::new();
    for number in processors {
        // A number that the set cannot hold is left out.
        if (*number as usize) < CpuSet::MAX_CPU {
            chosen.set(*number as usize);
        }
    }
    let _ = sched_setaffinity(None, &chosen);
}
