//! The drives of the machine, and the root of the box that is made of them.

use std::fs::File;
use std::io::{ErrorKind, Seek as _, SeekFrom};
use std::time::{Duration, Instant};

use guest_protocol::Machine;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_move};

use super::kernel::make_dir;
use super::modules::MODULES;
use crate::launch::devices::{self, Covers};
use crate::launch::mount_point::mount_options;
use crate::launch::nodes;
use crate::launch::refused::{At, Refused};
use crate::launch::root::{DIRECTORY_ITSELF, move_into};
use crate::launch::shares::Part;

const IMAGE_DRIVE: &str = "/dev/vda";
const CHANGES_DRIVE: &str = "/dev/vdb";
const IMAGE: &str = "/image";
const CHANGES: &str = "/changes";
const ROOT: &str = "/newroot";
/// This program among the initial files.
const INIT: &str = "/init";
/// Places where the views of the box are made before its root is there, so that no file of an image is
/// in the way.
const STAGE: &str = "/stage";
/// Limit for the kernel to find a drive, or its new size, which takes it milliseconds.
const DRIVE_WAIT: Duration = Duration::from_secs(10);
/// Pause between two looks.
const DRIVE_LOOK: Duration = Duration::from_millis(1);
/// Flags of all files of the box.
const FILES: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Drives whose image is mounted.
#[derive(Debug)]
pub(super) struct Drives;

impl Drives {
    /// Mounts the files of the image.
    pub(super) fn mount_image() -> Result<Drives, Refused> {
        wait_for(IMAGE_DRIVE, |size| size > 0).at("find the drive with the image")?;
        make_dir(IMAGE)?;
        mount(IMAGE_DRIVE, IMAGE, "ext4", FILES | MountFlags::RDONLY, None).at("mount the image")?;
        Ok(Drives)
    }

    /// Makes the root of the box, and makes it the root of this process.
    pub(super) fn enter(&self, machine: &Machine) -> Result<(), Refused> {
        let sized = wait_for(CHANGES_DRIVE, |size| size == machine.disk_bytes);
        sized.at("find the drive for the changes of the box")?;
        [CHANGES, ROOT, STAGE].into_iter().try_for_each(make_dir)?;
        // Nothing of the drive outlives the machine unless it is synced first.
        let flags = FILES | MountFlags::NOATIME;
        mount(CHANGES_DRIVE, CHANGES, "ext4", flags, None).at("mount the drive for the changes of the box")?;
        for part in ["upper", "work"] {
            make_dir(&format!("{CHANGES}/{part}"))?;
        }
        let options = format!("lowerdir={IMAGE},upperdir={CHANGES}/upper,workdir={CHANGES}/work");
        let options = mount_options(options)?;
        mount("overlay", ROOT, "overlay", FILES, options.as_c_str()).at("mount an overlay")?;
        let [dev, proc, sys] = ["dev", "proc", "sys"].map(|name| format!("{STAGE}/{name}"));
        [&dev, &proc, &sys].into_iter().try_for_each(|dir| make_dir(dir))?;
        let own = nodes::make()?.ok_or(Errno::PERM).at("make the devices")?;
        devices::mount_dev(&dev, machine.shm_mb, Some(own))?;
        let covers = Covers { file: format!("{dev}/null"), ..Covers::make(STAGE)? };
        devices::mount_proc(&proc, &covers, Some(Part::WHOLE), Some("0 65535"))?;
        mount("sysfs", &sys, "sysfs", FILES | MountFlags::NOEXEC | MountFlags::RDONLY, None).at("mount /sys")?;
        let root = rustix::fs::open(ROOT, DIRECTORY_ITSELF, rustix::fs::Mode::empty()).at("open the box's root")?;
        for (view, name) in [(&dev, "dev"), (&proc, "proc"), (&sys, "sys")] {
            move_into(view, &root, name).at(&format!("attach /{name}"))?;
        }
        drop(root);
        remove_initial_files();
        change_root()
    }
}

/// Makes the box's root that of this process. The kernel's first root cannot be left, only covered.
fn change_root() -> Result<(), Refused> {
    const STEP: &str = "enter the box's root";
    rustix::process::chdir(ROOT).at(STEP)?;
    mount_move(".", "/").at(STEP)?;
    rustix::process::chroot(".").at(STEP)?;
    rustix::process::chdir("/").at(STEP)
}

/// Frees the memory of the initial files.
fn remove_initial_files() {
    // On failure they only take memory.
    let modules = std::fs::read_dir(MODULES).into_iter().flatten().flatten().map(|module| module.path());
    for file in modules.chain([INIT.into()]) {
        let _ = std::fs::remove_file(file);
    }
}

/// Waits until a drive is there and its size, in bytes, is `right`.
fn wait_for(drive: &str, right: impl Fn(u64) -> bool) -> std::io::Result<()> {
    let begin = Instant::now();
    loop {
        let size = File::open(drive).and_then(|mut file| file.seek(SeekFrom::End(0)));
        match size {
            Ok(size) if right(size) => return Ok(()),
            Ok(_) if begin.elapsed() >= DRIVE_WAIT => return Err(Errno::OVERFLOW.into()),
            Err(error) if error.kind() != ErrorKind::NotFound || begin.elapsed() >= DRIVE_WAIT => return Err(error),
            Ok(_) | Err(_) => std::thread::sleep(DRIVE_LOOK),
        }
    }
}
