//! The box's file system tree, and the switch to it.

use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::{Launch, Overlay, Storage};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount, mount_change, move_mount, unmount,
};

use super::devices::{self, Covers};
use super::inner_mounts;
use super::mount_point::{attach_one, copied, make_dir, mount_layers, mount_options};
use super::refused::{At, Refused};
use super::shares::Part;
use super::size;
use super::size::Shown;

/// Directories that every Linux has. The box's tree is built over the first that can be covered;
/// the cover disappears with the old root.
const STAGES: [&str; 5] = ["/tmp", "/run", "/mnt", "/srv", "/var"];

/// Flags to open a directory itself: a name of one component leads to it or to nothing.
pub(super) const DIRECTORY_ITSELF: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Builds the tree and makes it the root of this process and its namespace. Returns the files that show
/// the size of the box, where it has any.
pub(super) fn enter(
    launch: &Launch,
    mut mounts: Vec<OwnedFd>,
    devices: Option<OwnedFd>,
) -> Result<Option<Shown>, Refused> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).at("make mounts private")?;
    if mounts.is_empty() && launch.id_base.is_none() {
        mounts = own_mounts(launch)?;
    }
    let stage = cover()?;
    let (layers, snapshot) = attach(stage, launch, mounts)?;
    let root = format!("{stage}/root");
    make_dir(&root)?;
    let mut layers = layers.into_iter();
    for overlay in &launch.overlays {
        let mut lower: Vec<String> = snapshot.iter().filter_map(|layer| part_of(layer, &overlay.name)).collect();
        lower.extend(layers.by_ref().take(overlay.lower.len()));
        let inner = inner_mounts::below(overlay, &launch.inner_mounts);
        match lower.as_slice() {
            // The kernel makes no overlay of a directory that has mounts of another owner below it.
            [layer] if !inner.is_empty() && launch.id_base.is_none() => {
                inner_mounts::cover_around(&root, stage, overlay, layer, &inner)?;
            }
            _ => mount_overlay(&root, stage, overlay, &lower)?,
        }
        inner_mounts::show(&root, launch, &inner)?;
    }
    // Built here, where no file of an image is in the way. The kernel allows no new view of
    // processes once the old one is unmounted.
    let proc = format!("{stage}/proc");
    let dev = format!("{stage}/dev");
    make_dir(&dev)?;
    let mut covers = Covers::make(stage)?;
    if devices.is_some() {
        covers.file = format!("{dev}/null");
    }
    devices::mount_dev(&dev, launch.shm_mb, devices)?;
    make_dir(&proc)?;
    let part = launch.slot.is_none().then(|| Part::of(launch));
    devices::mount_proc(&proc, &covers, part, pings(launch))?;
    let view = launch.size_view.as_ref();
    let shown = view.map(|view| size::show(view, stage, &proc, &covers.dir)).transpose()?;
    let root_dir = rustix::fs::open(&root, DIRECTORY_ITSELF, Mode::empty()).at("enter the box's root")?;
    move_into(&proc, &root_dir, "proc").at("attach /proc")?;
    move_into(&dev, &root_dir, "dev").at("attach /dev")?;
    if let Some(shown) = &shown {
        move_into(&shown.sys, &root_dir, "sys").at("attach /sys")?;
    }
    pivot(&root)?;
    Ok(shown)
}

/// Returns the groups whose programs may ping: all that the box has. Where every address leads to the agent, the
/// kernel would answer for each, so programs are refused there.
fn pings(launch: &Launch) -> Option<&'static str> {
    match (launch.transparent, launch.id_base) {
        (true, _) => None,
        (false, Some(_)) => Some("0 65535"),
        (false, None) => Some("0 0"),
    }
}

/// Moves a mount to the directory `name` of the box's root. A file that is not a directory is
/// replaced by one, and no link is followed.
pub(super) fn move_into(mount: &str, root: &OwnedFd, name: &str) -> Result<(), Errno> {
    let target = match openat(root, name, DIRECTORY_ITSELF, Mode::empty()) {
        Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => {
            if errno != Errno::NOENT {
                unlinkat(root, name, AtFlags::empty())?;
            }
            mkdirat(root, name, Mode::from_raw_mode(0o755))?;
            openat(root, name, DIRECTORY_ITSELF, Mode::empty())?
        }
        opened => opened?,
    };
    move_mount(CWD, mount, target.as_fd(), "", MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH)
}

/// Takes the layers in the child, as they are, for a launcher without privileges.
fn own_mounts(launch: &Launch) -> Result<Vec<OwnedFd>, Refused> {
    // Mounts below a layer are locked to it, so they must come along.
    let storage = match &launch.storage {
        Storage::Directory(dir) => Some(dir),
        Storage::Image(_) => return Err(Errno::PERM).at("mount the box's image"),
        Storage::TmpfsMb(_) => None,
    };
    let layers = launch.overlays.iter().flat_map(|overlay| &overlay.lower);
    layers.chain(storage).map(|path| copied(path.as_str()).at("open a layer")).collect()
}

fn cover() -> Result<&'static str, Refused> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mut last = Errno::NOENT;
    for stage in STAGES {
        match mount("tmpfs", stage, "tmpfs", flags, c"mode=0755") {
            Ok(()) => return Ok(stage),
            Err(errno) => last = errno,
        }
    }
    Err(last).at("find a place to build the box")
}

/// Attaches the received mounts: the layers, those of the snapshot, then the storage. Returns where the
/// layers and those of the snapshot are. A detached mount cannot be a layer:
/// the kernel wants one in the process's own namespace.
fn attach(stage: &str, launch: &Launch, mounts: Vec<OwnedFd>) -> Result<(Vec<String>, Vec<String>), Refused> {
    let count: usize = launch.overlays.iter().map(|overlay| overlay.lower.len()).sum();
    let storage = format!("{stage}/storage");
    make_dir(&storage)?;
    let mut layers = Vec::with_capacity(count);
    let mut mounts = mounts.into_iter();
    for number in 0..count + launch.snapshot.len() {
        let layer = format!("{stage}/layer{number}");
        make_dir(&layer)?;
        attach_one(&mounts.next().ok_or(Errno::BADF).at("attach a layer")?, &layer).at("attach a layer")?;
        layers.push(layer);
    }
    match (&launch.storage, mounts.next()) {
        (Storage::TmpfsMb(size), None) => mount_storage(&storage, *size, launch)?,
        (Storage::Directory(_) | Storage::Image(_), Some(mount)) => {
            attach_one(&mount, &storage).at("attach the box's storage")?;
        }
        (_, _) => return Err(Errno::BADF).at("attach the box's storage"),
    }
    let snapshot = layers.split_off(count);
    Ok((layers, snapshot))
}

/// Returns the directory for an overlay in a layer of a snapshot; `None` if that has none.
fn part_of(layer: &str, overlay: &str) -> Option<String> {
    let part = format!("{layer}/{overlay}");
    openat(CWD, part.as_str(), DIRECTORY_ITSELF, Mode::empty()).is_ok().then_some(part)
}

fn mount_storage(target: &str, size_mb: u32, launch: &Launch) -> Result<(), Refused> {
    let options = mount_options(format!("mode=0755,size={size_mb}m"))?;
    mount("tmpfs", target, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
        .at("mount the box's storage")?;
    for overlay in &launch.overlays {
        for part in ["", "/upper", "/work"] {
            make_dir(&format!("{target}/{}{part}", overlay.name))?;
        }
    }
    Ok(())
}

fn mount_overlay(root: &str, stage: &str, overlay: &Overlay, lower: &[String]) -> Result<(), Refused> {
    let lower = lower.join(":");
    let storage = format!("{stage}/storage/{}", overlay.name);
    let target = format!("{root}{}", overlay.target);
    mount_layers(&target, &lower, (&format!("{storage}/upper"), &format!("{storage}/work")), overlay.fsync)
}

fn pivot(root: &str) -> Result<(), Refused> {
    rustix::process::chdir(root).at("enter the box's root")?;
    rustix::process::pivot_root(".", ".").at("change the root")?;
    unmount(".", UnmountFlags::DETACH).at("leave the old root")?;
    rustix::process::chdir("/").at("enter the box's root")
}
