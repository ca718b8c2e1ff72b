//! Mount points: the files and directories to mount on, and detached mounts on them.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

use super::refused::{At, Refused};

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
