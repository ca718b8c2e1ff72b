//! Files of images as drives: an ext4 for each image, which all boxes of it read.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use images::{ImageGuard, Images};
use tokio::sync::Mutex;

use super::drives::{UNFINISHED, remove_unfinished};
use crate::local::fs_image::make_ext4;
use crate::local::usage::usage;

/// Name of the drive without any file, which probes boot from.
const EMPTY: &str = "empty";
/// Size of the drive without any file, in mebibytes.
const EMPTY_MB: u32 = 8;
/// Space of an ext4 besides what its files take, in mebibytes.
const EXTRA_MB: u64 = 16;
/// Bytes of an ext4 for each entry, besides its content: its inode, and its part of a directory.
const ENTRY_BYTES: u64 = 1024;
/// Number of attempts, each with twice the space: the need can only be estimated.
const ATTEMPTS: u32 = 4;

/// Drives by the digest of their image. There is at most one for each image of the image store, so that
/// its bounds are theirs.
#[derive(Debug)]
pub(super) struct ImageFiles {
    dir: PathBuf,
    /// Lock held while a drive is made: it is bound by the disk, and one at a time is the fastest.
    making: Mutex<()>,
}

impl ImageFiles {
    /// Opens the folder of drives, and removes what an earlier server left unfinished.
    pub(super) fn open(dir: PathBuf) -> io::Result<ImageFiles> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        remove_unfinished(&dir)?;
        Ok(ImageFiles { dir, making: Mutex::default() })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the drive of an image, which is made if there is none yet; `None` stands for no files.
    pub(super) async fn of(&self, image: Option<&ImageGuard>, images: Option<&Images>) -> io::Result<PathBuf> {
        let drive = self.dir.join(image.map_or(EMPTY, |image| image.digest().trim_start_matches("sha256:")));
        if drive.exists() {
            return Ok(drive);
        }
        let _making = self.making.lock().await;
        if drive.exists() {
            return Ok(drive);
        }
        let name = drive.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let new = self.dir.join(format!("{UNFINISHED}{name}"));
        self.make(image.map(ImageGuard::root), &new).await?;
        fs::set_permissions(&new, Permissions::from_mode(0o444))?;
        fs::rename(new, &drive)?;
        if let Some(images) = images {
            self.prune(images)?;
        }
        Ok(drive)
    }

    async fn make(&self, root: Option<&Path>, new: &Path) -> io::Result<()> {
        let Some(root) = root else { return make_ext4(new, EMPTY_MB, None).await };
        let tree = root.to_owned();
        let used = tokio::task::spawn_blocking(move || usage(&tree, None)).await.map_err(io::Error::other)??;
        let mut size_mb = (used.bytes + used.entries * ENTRY_BYTES).div_ceil(1 << 20) * 9 / 8 + EXTRA_MB;
        for attempt in 1..=ATTEMPTS {
            let size = u32::try_from(size_mb).map_err(|_| io::ErrorKind::FileTooLarge)?;
            match make_ext4(new, size, Some((root, used.entries))).await {
                // Also if the host's disk is full, which then fails again.
                Err(error) if error.kind() == io::ErrorKind::StorageFull && attempt < ATTEMPTS => {
                    size_mb *= 2;
                }
                made => return made,
            }
        }
        Ok(())
    }

    /// Removes the drives of images that are not in the store any more. Boxes keep theirs, under a name
    /// of their own.
    fn prune(&self, images: &Images) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_kept = name == EMPTY || name.starts_with('.') || images.hold(&format!("sha256:{name}")).is_some();
            if !is_kept {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}
