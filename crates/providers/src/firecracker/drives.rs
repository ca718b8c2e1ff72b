//! Drives with what boxes change: sparse files with an empty ext4.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use firecracker::requests::{RateLimiter, TokenBucket};
use rustix::fs::fstat;
use tokio::sync::Mutex;

use super::drive_rate::DriveRate;
use crate::local::file_copy::{clone, copy_content};
use crate::local::fs_image::make_ext4;

/// Size of the drive of a box without a bound, in mebibytes. It takes what the box writes of the host's
/// disk, where `limits.reserve_disk_mb` bounds it.
const UNBOUNDED_MB: u32 = 16 * 1024;
/// Smallest drive: an ext4 of less holds nothing.
const LEAST_MB: u32 = 8;
/// Most sizes whose empty drive is kept; a further one is made anew for each box.
const SIZES_MAX: usize = 16;
/// Time in which the bucket of a limit is filled, in milliseconds.
const REFILL_MS: u64 = 1000;

/// Maker of drives.
#[derive(Debug)]
pub(super) struct Drives {
    /// Folder of empty drives, named by their size in mebibytes.
    dir: PathBuf,
    rate: DriveRate,
    /// Lock held while an empty drive is made.
    making: Mutex<()>,
}

impl Drives {
    /// Opens the folder of empty drives, and removes what an earlier server left unfinished.
    pub(super) fn open(dir: PathBuf, rate: DriveRate) -> io::Result<Drives> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        remove_unfinished(&dir)?;
        Ok(Drives { dir, rate, making: Mutex::default() })
    }

    /// Returns the size of the drive of a box with this `disk_mb`.
    pub(super) fn size_mb(disk_mb: u32) -> u32 {
        if disk_mb == 0 { UNBOUNDED_MB } else { disk_mb.max(LEAST_MB) }
    }

    /// Makes a drive of `size_mb` MiB at `to`.
    pub(super) async fn make(&self, size_mb: u32, to: &Path) -> io::Result<()> {
        let empty = self.dir.join(size_mb.to_string());
        if !empty.exists() {
            let _making = self.making.lock().await;
            if !empty.exists() {
                if fs::read_dir(&self.dir)?.count() >= SIZES_MAX {
                    return make_ext4(to, size_mb, None).await;
                }
                let new = self.dir.join(format!("{UNFINISHED}{size_mb}"));
                make_ext4(&new, size_mb, None).await?;
                fs::rename(new, &empty)?;
            }
        }
        let to = to.to_owned();
        let copied = tokio::task::spawn_blocking(move || {
            let to = File::options().write(true).create_new(true).mode(0o600).open(to)?;
            copy(OwnedFd::from(File::open(empty)?), &OwnedFd::from(to))
        });
        copied.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Returns the limits of a drive.
    pub(super) fn limiter(&self) -> Option<RateLimiter> {
        let limiter = RateLimiter {
            bandwidth: token_bucket(u64::from(self.rate.mb) << 20),
            ops: token_bucket(u64::from(self.rate.operations)),
        };
        (limiter.bandwidth.is_some() || limiter.ops.is_some()).then_some(limiter)
    }
}

/// Returns the bucket of a rate; `None` for 0, which is no limit.
fn token_bucket(size: u64) -> Option<TokenBucket> {
    (size > 0).then_some(TokenBucket { size, refill_time: REFILL_MS })
}

/// Start of the name of a file that is being made.
pub(super) const UNFINISHED: &str = ".new-";

/// Removes the files that were being made when an earlier server ended.
pub(super) fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Copies a drive to an empty file, with its holes, and with shared blocks where the file system can.
pub(super) fn copy(from: OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let size = fstat(&from)?.st_size;
    if clone(to, &from, &mut true) { Ok(()) } else { copy_content(from, to, u64::try_from(size).unwrap_or_default()) }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[tokio::test]
    async fn drives_of_a_size_are_copies_of_one_that_take_little_of_the_disk() {
        if fixtures::found("mke2fs", &["/usr/sbin/mke2fs".into(), "/sbin/mke2fs".into()]).is_none() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("drives");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(".new-7"), "unfinished").unwrap();
        let drives = Drives::open(dir.clone(), DriveRate { mb: 3, operations: 0 }).unwrap();
        for name in ["one", "two"] {
            drives.make(Drives::size_mb(0), &temp.path().join(name)).await.unwrap();
            let made = fs::metadata(temp.path().join(name)).unwrap();
            assert_eq!(made.len(), 16 << 30);
            assert!(made.blocks() * 512 < 4 << 20, "{} blocks", made.blocks());
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        let limiter = drives.limiter().unwrap();
        assert_eq!((limiter.bandwidth.unwrap().size, limiter.ops), (3 << 20, None));
    }
}
