//! Changes of a box, kept in an image file; without privileges, as copies.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use erofs::{Ids, Tree};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use super::disk::image_file;
use super::layer_copies;
use super::prepared_dirs::layers;
use crate::local::cgroup::freezer::Freezer;
use crate::local::folder::BoxFolder;
use crate::local::ids::IDS_PER_BOX;
use crate::local::record::Record;
use crate::local::snapshot_folder::SnapshotFolder;
use crate::local::snapshots::not_taken;
use crate::{Error, Result};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Returns the reason why this kernel has no snapshots, and the remedy; `None` if it has.
pub(super) fn obstacle() -> Option<String> {
    let error = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC).err()?;
    Some(format!("The kernel has no EROFS ({error}), so boxes have no snapshots: load the module erofs."))
}

/// Writes the changes of a box, whose processes stand still, into the folder of a snapshot. They are on the
/// disk when that is finished.
pub(super) async fn keep(folder: &BoxFolder, record: &Record, new: &SnapshotFolder) -> Result<u64> {
    if !layers(folder).exists() && !image_file(folder).exists() {
        return Err(Error::NotSupported(
            "the files of the sandbox are in its memory, so no snapshot can be taken; spawn without `disk_mb`, run the \
             server as root, or move the data folder to ext4, xfs or btrfs"
                .to_owned(),
        ));
    }
    if Freezer::of(&record.cgroups).is_none() {
        return Err(Error::NotSupported(
            "the box has no control group that stops its processes, so it has no snapshots; the server needs control \
             groups of version 2, or the freezer of version 1"
                .to_owned(),
        ));
    }
    let folder = folder.clone();
    let new = new.clone();
    let id_base = record.id_base;
    let written = tokio::task::spawn_blocking(move || {
        // Only ids of the box tell its owners apart, and only root mounts an image file.
        let Some(base) = id_base else { return layer_copies::keep(&folder, &new) };
        let out = new.begin(&folder)?;
        erofs::write(trees(&folder)?, Ids { base, count: IDS_PER_BOX }, &out)?;
        new.size_bytes()
    });
    written.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(not_taken)
}

/// Opens the upper layers of a box, by the names of their overlays.
fn trees(folder: &BoxFolder) -> io::Result<Vec<Tree>> {
    let storage = match image_file(folder) {
        image if image.exists() => mounted(&image)?,
        _ => openat(CWD, layers(folder), DIRECTORY, Mode::empty())?,
    };
    let mut trees = Vec::new();
    for entry in Dir::read_from(&storage)? {
        let name = entry?.file_name().to_owned();
        // Not every directory of a file system is one of an overlay.
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        match openat(&storage, format!("{name}/upper"), DIRECTORY, Mode::empty()) {
            Ok(dir) => trees.push(Tree { name, dir }),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(trees)
}

/// Mounts the file system of a box once more, apart from any folder: what the box has not written to
/// its device yet is seen all the same.
fn mounted(image: &Path) -> io::Result<OwnedFd> {
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", loop_of(image)?)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(openat(mount, ".", DIRECTORY, Mode::empty())?)
}

/// Returns the loop device of an image file.
fn loop_of(image: &Path) -> io::Result<String> {
    let image = fs::canonicalize(image)?;
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Devices without a file have no such entry.
        if let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file"))
            && Path::new(file.trim_end_matches('\n')) == image
        {
            return Ok(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    Err(io::Error::other(format!("no loop device uses the file {}", image.display())))
}
