//! Mount points: the files and directories to mount on, and detached mounts on them.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};

use super::refused::{At, Refused};

/// Returns a detached copy of a directory or file with all mounts below it.
pub(super) fn copied(path: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    const RECURSIVE: u32 = 0x8000;
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::from_bits_retain(RECURSIVE);
    open_tree(CWD, path, flags)
}

/// Attaches a detached mount.
pub(super) fn attach_one(mount: &OwnedFd, target: &str) -> Result<(), Errno> {
    move_mount(mount.as_fd(), "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

pub(super) fn make_dir(path: &str) -> Result<(), Refused> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).at("make a directory")
}

pub(super) fn make_file(path: &str) -> Result<(), Refused> {
    fs::File::create_new(path).map(drop).at("make a file")
}

/// Returns mount options as the kernel takes them.
pub(super) fn mount_options(text: String) -> Result<CString, Refused> {
    CString::new(text).map_err(|_| Errno::INVAL).at("write mount options")
}

/// Mounts an overlay. `volatile`, without `fsync`: discarded changes need not be synced. `userxattr`: the
/// only attributes that a user namespace may set.
pub(super) fn mount_layers(target: &str, lower: &str, (upper, work): (&str, &str), fsync: bool) -> Result<(), Refused> {
    let volatile = if fsync { "" } else { ",volatile" };
    let options = mount_options(format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr{volatile}"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("overlay", target, "overlay", flags, options.as_c_str()).at("mount an overlay")
}
