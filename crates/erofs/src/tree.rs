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

/// A tree whose directories are nested deeper than an image may have them, as the cause of an
/// [`std::io::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep;

impl fmt::Display for TooDeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "directories are nested deeper than {} levels", DEPTH_MAX)
    }
}

impl std::error::Error for TooDeep {}

/// Returns the error for a tree that is not what it was a moment ago.
pub(crate) fn changed() -> io::Error {
    io::Error::other("the tree was changed while it was read")
}

/// Size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Length in bytes, with holes.
    pub bytes: u64,
    /// Files, directories and other inodes.
    pub inodes: u64,
}
