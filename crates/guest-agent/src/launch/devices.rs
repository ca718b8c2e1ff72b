//! The mounts `/proc` and `/dev` of a box.

use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};

use super::mount_point::{attach_one, make_dir, make_file, mount_options};
use super::refused::{At, Refused};
use super::shares::{self, Part};

/// Settings and controls of the kernel in `/proc`, mounted read-only.
const READ_ONLY: [&str; 5] = ["sys", "bus", "fs", "irq", "pressure"];
/// Files that show the state of the host or act on it.
const MASKED_FILES: [&str; 9] =
    ["kcore", "keys", "timer_list", "sched_debug", "kmsg", "sysrq-trigger", "cmdline", "locks", "diskstats"];
/// Directories that show the state of the host.
const MASKED_DIRS: [&str; 3] = ["acpi", "scsi", "asound"];
/// Harmless devices without content, with their numbers.
pub(super) const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// Mount options of `/dev` itself, which limit the files that a box may make there.
pub(super) const TREE: [(&str, &str); 3] = [("mode", "0755"), ("size", "64k"), ("nr_inodes", "64")];
/// Maximum number of terminals of a box: all containers of a host have some three thousand
/// together.
const TERMINALS_MAX: u32 = 64;
/// Names that programs expect in `/dev`.
pub(super) const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// Mounts the box's own view of processes at `target`.
///
/// `part` is that of the users of a new user namespace; a slot has the namespace of its box.
///
/// `pings` are the groups of the box whose programs may send echo requests without rights.
pub(super) fn mount_proc(
    target: &str,
    covers: &Covers,
    part: Option<Part>,
    pings: Option<&str>,
) -> Result<(), Refused> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", target, "proc", plain, None).at("mount /proc")?;
    if let Some(groups) = pings {
        // A kernel without the file has no such sockets.
        let _ = std::fs::write(format!("{target}/sys/net/ipv4/ping_group_range"), groups);
    }
    if let Some(part) = part {
        shares::bound_the_namespace(target, part)?;
    }
    for name in READ_ONLY {
        let path = format!("{target}/{name}");
        if exists(mount_bind(&path, &path)).at("protect /proc")? {
            mount_remount(&path, plain | MountFlags::BIND | MountFlags::RDONLY, c"").at("protect /proc")?;
        }
    }
    for name in MASKED_FILES {
        exists(mount_bind(&covers.file, format!("{target}/{name}"))).at("mask a file of /proc")?;
    }
    for name in MASKED_DIRS {
        exists(mount_bind(&covers.dir, format!("{target}/{name}"))).at("mask a directory of /proc")?;
    }
    Ok(())
}

/// Returns whether the target exists: kernels differ in the content of `/proc`.
fn exists(outcome: Result<(), Errno>) -> Result<bool, Errno> {
    match outcome {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Mounts the box's devices at `target`: its own, or else the host's.
pub(super) fn mount_dev(target: &str, shm_mb: u32, own: Option<OwnedFd>) -> Result<(), Refused> {
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    let pts = format!("{target}/pts");
    let shm = format!("{target}/shm");
    match own {
        Some(tree) => attach_one(&tree, target).at("attach the devices")?,
        None => {
            bind_devices(target)?;
            make_dir(&pts)?;
            make_dir(&shm)?;
        }
    }
    mount_terminals(&pts, plain)?;
    // Each empty file takes kernel memory too, so the number of files is limited like the bytes.
    let options = mount_options(format!("mode=1777,size={shm_mb}m,nr_inodes={}", shm_mb.saturating_mul(256)))?;
    mount("tmpfs", &shm, "tmpfs", plain | MountFlags::NODEV, options.as_c_str()).at("mount /dev/shm")?;
    rustix::fs::chmod(&shm, Mode::from_raw_mode(0o1777)).at("mount /dev/shm")
}

/// Mounts the terminals. They belong to the group `tty`, which servers of terminals expect and could not
/// give to them; a box with one user has no such group.
fn mount_terminals(target: &str, flags: MountFlags) -> Result<(), Refused> {
    /// Number of the group in `/etc/group` of the distributions.
    const TTY: u32 = 5;
    let options = format!("newinstance,ptmxmode=0666,mode=0620,max={TERMINALS_MAX}");
    let of_tty = mount_options(format!("{options},gid={TTY}"))?;
    match mount("devpts", target, "devpts", flags, of_tty.as_c_str()) {
        Err(Errno::INVAL) => mount("devpts", target, "devpts", flags, mount_options(options)?.as_c_str()),
        mounted => mounted,
    }
    .at("mount /dev/pts")
}

fn bind_devices(target: &str) -> Result<(), Refused> {
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    let options = mount_options(TREE.map(|(key, value)| format!("{key}={value}")).join(","))?;
    mount("tmpfs", target, "tmpfs", plain, options.as_c_str()).at("mount /dev")?;
    for (name, _, _) in DEVICES {
        let path = format!("{target}/{name}");
        make_file(&path)?;
        mount_bind(format!("/dev/{name}"), &path).at("bind a device")?;
    }
    for (to, name) in LINKS {
        rustix::fs::symlink(to, format!("{target}/{name}")).at("link a device")?;
    }
    Ok(())
}

/// Paths of what is mounted over files and directories that a box must not see.
pub(super) struct Covers {
    /// File without content, or the box's null device.
    pub(super) file: String,
    /// Directory without content.
    pub(super) dir: String,
}

impl Covers {
    /// Makes a file and a directory below `stage`. What is mounted from there is read-only too, and no file
    /// system of its own, whose end would take the kernel milliseconds.
    pub(super) fn make(stage: &str) -> Result<Covers, Refused> {
        const STEP: &str = "make the masks for files";
        let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let parent = format!("{stage}/empty");
        let covers = Covers { file: format!("{parent}/file"), dir: format!("{parent}/dir") };
        make_dir(&parent)?;
        make_file(&covers.file)?;
        make_dir(&covers.dir)?;
        mount_bind(&parent, &parent).at(STEP)?;
        mount_remount(&parent, plain | MountFlags::BIND | MountFlags::RDONLY, c"").at(STEP)?;
        Ok(covers)
    }
}
