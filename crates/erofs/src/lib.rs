//! Images of the read-only file system EROFS, written from the directories of boxes.
//!
//! An image is one file with all of a tree: names, modes, owners, times, extended attributes, links
//! and content. The kernel mounts it as it is, so a tree that was kept in one can be used at once,
//! by many, and cannot change.
//!
//! Nothing is compressed, and each inode is followed by its own attributes and, where they fit into
//! its block, by its content or the last part of it. The format is that of `fs/erofs/erofs_fs.h` of
//! Linux, described in <https://docs.kernel.org/filesystems/erofs.html>; every kernel from 5.4 on
//! reads such an image.
//!
//! The trees are hostile: no link of them is followed, and nothing that is no plain file is opened
//! for reading.

#![warn(missing_docs)]

mod attributes;
mod directory;
mod format;
mod output;
mod walk;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// A tree for the image, as a directory below its root.
#[derive(Debug)]
pub struct Tree {
    /// Name of the directory in the image.
    pub name: String,
    /// The directory. It must not change while it is read.
    pub dir: OwnedFd,
}

/// Range of ids of this host that belongs to the trees. The image has them from zero on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// First id of the range.
    pub base: u32,
    /// Number of ids.
    pub count: u32,
}

impl Ids {
    /// Id of the image in the place of one outside of the range: that of `nobody`.
    const OUTSIDE: u32 = 65_534;

    /// Returns the id in the image.
    fn shifted(self, id: u32) -> u32 {
        id.checked_sub(self.base).filter(|id| *id < self.count).unwrap_or(Ids::OUTSIDE)
    }
}

/// A tree whose directories are nested deeper than an image may have them, as the cause of an
/// [`io::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep;

impl fmt::Display for TooDeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "directories are nested deeper than {} levels", walk::DEPTH_MAX)
    }
}

impl std::error::Error for TooDeep {}

/// Size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Length in bytes, with holes.
    pub bytes: u64,
    /// Files, directories and other inodes.
    pub inodes: u64,
}

/// Writes an image of `trees` into the empty file `out`. Blocks, so it needs a thread of its own.
///
/// # Errors
/// If something cannot be read or written, or changes while it is read; [`TooDeep`] if directories are
/// nested deeper than a thousand levels.
pub fn write(trees: Vec<Tree>, ids: Ids, out: &File) -> io::Result<Written> {
    walk::write(trees, ids, out)
}
