//! Device nodes of a box's own.
//!
//! A device that is bind-mounted from the host is the host's own file: locks and watches on it
//! apply to all boxes and to the host. So each box has nodes of its own, which only the host's root
//! can make.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, makedev, mkdirat, mknodat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use rustix::process::umask;

use super::descriptors::own;
use super::devices::{DEVICES, LINKS, TREE};
use super::refused::{At, Refused};

/// Makes a detached mount for `/dev`, as the user who will own it. `None` if this root may make no
/// devices.
pub(super) fn make() -> Result<Option<OwnedFd>, Refused> {
    let before = umask(Mode::empty());
    let made = tree();
    umask(before);
    match made {
        Ok(tree) => Ok(Some(tree)),
        Err(Errno::PERM) => Ok(None),
        Err(errno) => Err(errno).at("make the devices"),
    }
}

fn tree() -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in TREE {
        fsconfig_set_string(context.as_fd(), key, value)?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let tree = own(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)?;
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(&tree, name, FileType::CharacterDevice, mode, makedev(major, minor))?;
    }
    for (to, name) in LINKS {
        symlinkat(to, &tree, name)?;
    }
    for name in ["pts", "shm"] {
        mkdirat(&tree, name, Mode::from_raw_mode(0o755))?;
    }
    Ok(tree)
}
