//! Disk that boxes lie on.

use std::io;
use std::path::PathBuf;

use crate::Error;

/// Disk of this host that boxes lie on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxDisk {
    /// Folder on that disk.
    pub dir: PathBuf,
    /// True if a box with a limit on its disk (`disk_mb`) lies there too; false if such a box lies
    /// in memory.
    pub holds_bounded: bool,
    /// True if a box begins with a copy of the files of its image, which takes the disk before it runs.
    pub copies_image: bool,
    /// True if a box begins with a copy of what is in its snapshot.
    pub copies_snapshot: bool,
}

/// Converts an I/O error of the disk that boxes lie on; a full disk becomes [`Error::Full`].
pub(crate) fn refused(action: &'static str, error: io::Error) -> Error {
    // The kernel reports a lack of bytes and a lack of inodes with the same error.
    let is_full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
    if is_full { full() } else { Error::failed(action, error) }
}

/// Returns whether a program that ran out of disk says so in this text. Its language is English.
pub(crate) fn says_full(text: &str) -> bool {
    ["No space left on device", "Disk quota exceeded", "Could not allocate", "No free space", "no space left"]
        .iter()
        .any(|full| text.contains(full))
}

/// Returns the error of a disk without room for another box.
pub(crate) fn full() -> Error {
    Error::Full("the disk with this server's sandboxes is full; destroy some of them or free space on it".to_owned())
}
