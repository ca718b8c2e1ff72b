//! `/proc` and `/dev` of a box.

use guest_protocol::Launch;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};

use super::root::{make_dir, make_file, text};
use super::{At, Part, Refused, shares};

/// Settings and controls of the kernel: to be read, at most.
const READ_ONLY: [&str; 4] = ["sys", "bus", "fs", "irq"];
/// Files that tell about the host or act on it.
const MASKED_FILES: [&str; 6] = ["kcore", "keys", "timer_list", "sched_debug", "kmsg", "sysrq-trigger"];
/// Directories that tell about the host.
const MASKED_DIRS: [&str; 3] = ["acpi", "scsi", "asound"];
/// Devices that hold nothing and harm nobody.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Names that programs expect in `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// Mounts the box's own view of processes at `target`.
pub(super) fn mount_proc(target: &str, launch: &Launch) -> Result<(), Refused> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", target, "proc", plain, None).at("mount /proc")?;
    // A slot has the user namespace of its box.
    if launch.slot.is_none() {
        shares::bound_the_namespace(target, Part::of(launch))?;
    }
    for name in READ_ONLY {
        let path = format!("{target}/{name}");
        if exists(mount_bind(&path, &path)).at("protect /proc")? {
            mount_remount(&path, plain | MountFlags::BIND | MountFlags::RDONLY, c"").at("protect /proc")?;
        }
    }
    for name in MASKED_FILES {
        exists(mount_bind("/dev/null", format!("{target}/{name}"))).at("mask a file of /proc")?;
    }
    for name in MASKED_DIRS {
        let empty =
            mount("tmpfs", format!("{target}/{name}"), "tmpfs", plain | MountFlags::RDONLY, c"nr_inodes=1,mode=0555");
        exists(empty).at("mask a directory of /proc")?;
    }
    Ok(())
}

/// Whether there is something to mount on: kernels differ in what `/proc` has.
fn exists(outcome: Result<(), Errno>) -> Result<bool, Errno> {
    match outcome {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Mounts the box's own devices at `target`.
pub(super) fn mount_dev(target: &str, shm_mb: u32) -> Result<(), Refused> {
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", target, "tmpfs", plain, c"mode=0755,size=64k,nr_inodes=64").at("mount /dev")?;
    for name in DEVICES {
        let path = format!("{target}/{name}");
        make_file(&path)?;
        mount_bind(format!("/dev/{name}"), &path).at("bind a device")?;
    }
    for (to, name) in LINKS {
        rustix::fs::symlink(to, format!("{target}/{name}")).at("link a device")?;
    }
    let pts = format!("{target}/pts");
    make_dir(&pts)?;
    mount("devpts", &pts, "devpts", plain, c"newinstance,ptmxmode=0666,mode=0620").at("mount /dev/pts")?;
    let shm = format!("{target}/shm");
    make_dir(&shm)?;
    // Each empty file takes kernel memory too, so files are bounded with bytes.
    let options = text(format!("mode=1777,size={shm_mb}m,nr_inodes={}", shm_mb.saturating_mul(256)))?;
    mount("tmpfs", &shm, "tmpfs", plain | MountFlags::NODEV, options.as_c_str()).at("mount /dev/shm")?;
    rustix::fs::chmod(&shm, Mode::from_raw_mode(0o1777)).at("mount /dev/shm")
}
