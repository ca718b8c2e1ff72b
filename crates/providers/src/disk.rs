//! Disk of this host: usage by boxes, and free space.

use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// Usage of the disk that a box lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUsage {
    /// Bytes in blocks on disk.
    pub bytes: u64,
    /// Files, directories and everything else that takes an inode. A box with a file
    /// system of its own takes next to none of the host's.
    pub entries: u64,
    /// True if there was more than could be counted in time.
    pub is_cut: bool,
}

/// Disk that boxes lie on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxDisk {
    /// Folder on that disk.
    pub dir: PathBuf,
    /// True if a box with `disk_mb` lies on it too, and not in memory.
    pub holds_bounded: bool,
}

/// Free space and inodes of a file system for unprivileged users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Free space in bytes.
    pub bytes: u64,
    /// Free inodes; `None` where the file system does not count them (btrfs).
    pub entries: Option<u64>,
}

impl Room {
    /// Returns the free space of the file system that `path` is on.
    ///
    /// # Errors
    /// If `statvfs` fails.
    pub fn of(path: &Path) -> io::Result<Room> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Room {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            entries: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }
}

/// Converts an I/O error of the disk that boxes lie on; a full disk becomes [`Error::Full`].
pub(crate) fn refused(action: &'static str, error: io::Error) -> Error {
    // The kernel reports a lack of bytes and a lack of inodes with the same error.
    let is_full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
    if is_full { full() } else { Error::failed(action, error) }
}

/// Returns the error of a disk without room for another box.
pub(crate) fn full() -> Error {
    Error::Full("the disk with the boxes of this server is full; destroy some of them or make room on it".to_owned())
}
