//! Disk of this host: free space, usage, the removal of trees, the replacement of files, and files with holes.

#![warn(missing_docs)]

mod removal;
mod replacement;
mod sparse;

use std::io;
use std::path::Path;

pub use removal::remove_tree;
pub use replacement::replace_file;
pub use sparse::write_sparse;

/// Usage of a disk by one box or image.
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
