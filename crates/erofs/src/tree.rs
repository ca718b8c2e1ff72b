//! Trees that an image is made of, and what came of it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

/// Flags to open an entry for reading, of a tree that may have put anything in its place.
pub(crate) const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Most levels of directories, each of which holds a descriptor while what is below it is written.
pub(crate) const DEPTH_MAX: usize = 1000;

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
    pub(crate) fn shifted(self, id: u32) -> u32 {
        id.checked_sub(self.base).filter(|id| *id < self.count).unwrap_or(Ids::OUTSIDE)
    }
}

/// Most memory for the entries of the directories that are open at the same time, in bytes.
pub(crate) const ENTRIES_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A tree that an image is not made of, as the cause of an [`std::io::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Directories are nested too deep.
    TooDeep,
    /// The entries of a directory and of those above it, and the files with several names, would take too much
    /// memory.
    TooManyNames,
    /// A file has more extended attributes than an inode of an image.
    TooManyAttributes,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::TooDeep => write!(f, "directories are nested deeper than {DEPTH_MAX} levels"),
            Unfit::TooManyNames => f.write_str(
                "there are too many names: about a million in one directory and its parents, or four million files \
                 with several names",
            ),
            Unfit::TooManyAttributes => {
                f.write_str("a file has an extended attribute of 64 KiB, or extended attributes of 256 KiB in total")
            }
        }
    }
}

impl std::error::Error for Unfit {}

impl From<Unfit> for io::Error {
    fn from(unfit: Unfit) -> io::Error {
        io::Error::other(unfit)
    }
}

/// Returns the error for a tree that is not what it was a moment ago.
pub(crate) fn changed() -> io::Error {
    io::Error::other("the tree changed while it was being read")
}

/// Size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Length in bytes, with holes.
    pub bytes: u64,
    /// Files, directories and other inodes.
    pub inodes: u64,
}
