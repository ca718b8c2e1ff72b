//! Detached mounts that the launcher makes for a box.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use guest_protocol::{Launch, Storage};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, open_tree,
};

use super::descriptors::open;
use super::refused::{At, Refused};
use super::syscall;

/// Returns detached mounts of all layers, those of a snapshot, and the storage, with the ids of a user
/// namespace.
pub(super) fn mounts(launch: &Launch, user_namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Refused> {
    let layers = launch.overlays.iter().flat_map(|overlay| &overlay.lower);
    let mut mounts = layers.map(|lower| lower_mount(lower, user_namespace)).collect::<Result<Vec<_>, _>>()?;
    for file in &launch.snapshot {
        mounts.push(snapshot_mount(file, user_namespace)?);
    }
    mounts.extend(storage_mount(launch)?);
    Ok(mounts)
}

/// Returns a detached mount of a host directory that shows host root's files as the box's.
fn lower_mount(path: &str, user_namespace: BorrowedFd<'_>) -> Result<OwnedFd, Refused> {
    let mount = detached(path).at("open a layer")?;
    syscall::idmap_mount(&mount, user_namespace).at("map the ids of a layer")?;
    Ok(mount)
}

fn detached(path: &str) -> Result<OwnedFd, Errno> {
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// Mounts a layer of a snapshot without attaching it anywhere on the host; as [`lower_mount`].
fn snapshot_mount(file: &str, user_namespace: BorrowedFd<'_>) -> Result<OwnedFd, Refused> {
    const STEP: &str = "mount a layer of the snapshot";
    let context = match created(file) {
        // Before Linux 6.12 only a device can be mounted.
        Err(Errno::NOTBLK) => {
            let image = open(file, OFlags::RDONLY).at("open a layer of the snapshot")?;
            let (_device, path) = syscall::attach_loop(&image).at("attach a layer of the snapshot")?;
            created(path.as_c_str()).at(STEP)?
        }
        context => context.at(STEP)?,
    };
    let attributes =
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).at(STEP)?;
    syscall::idmap_mount(&mount, user_namespace).at("map the ids of a layer of the snapshot")?;
    Ok(mount)
}

fn created(source: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", source)?;
    fsconfig_set_flag(context.as_fd(), "ro")?;
    fsconfig_create(context.as_fd())?;
    Ok(context)
}

/// Returns a detached mount of the box's storage; `None` if the box makes it.
fn storage_mount(launch: &Launch) -> Result<Option<OwnedFd>, Refused> {
    let mount = match &launch.storage {
        Storage::TmpfsMb(_) => return Ok(None),
        Storage::Directory(dir) => detached(dir).at("open the box's storage")?,
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
pub(super) fn prepare_storage(launch: &Launch, storage: BorrowedFd<'_>) -> Result<(), Refused> {
    give_to_root(launch, storage, "").at("set the owner of the box's storage")?;
    for overlay in &launch.overlays {
        for path in [overlay.name.clone(), format!("{}/upper", overlay.name), format!("{}/work", overlay.name)] {
            match rustix::fs::mkdirat(storage, path.as_str(), Mode::from_raw_mode(0o755)) {
                // The server may have made them in advance.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).at("make the box's storage"),
            }
            give_to_root(launch, storage, &path).at("set the owner of the box's storage")?;
        }
    }
    Ok(())
}

/// Gives a file of the storage to the root of a box whose ids are not those of the host.
fn give_to_root(launch: &Launch, storage: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    let Some(base) = launch.id_base else { return Ok(()) };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    rustix::fs::chownat(storage, path, Some(Uid::from_raw(base)), Some(Gid::from_raw(base)), flags)
}
