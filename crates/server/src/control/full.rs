//! Full disks: which disk of the host has no room.

use std::fmt;

/// Disk of the host that has no room for a request. Its text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Full {
    /// The disk with the server's database is full.
    Database,
    /// The disk with a provider's boxes has less space left than its reserve.
    Space { provider: String, left_mb: u64, reserve_mb: u64 },
    /// The disk with a provider's boxes has fewer inodes left than its reserve.
    Inodes { provider: String, left: u64, reserve: u64 },
    /// The disk with a provider's boxes has less space beyond its reserve than the request would
    /// write.
    Headroom {
        provider: String,
        write: Write,
        /// Size of the write.
        needed_mb: u64,
        /// Space beyond the reserve.
        free_mb: u64,
        /// Part of the free space that writes under way are going to take.
        promised_mb: u64,
    },
    /// The disk of a provider or its engine is full, in its own words.
    Provider { cause: String },
    /// The disk with the archives for builds has no room, or cannot be written.
    Archives,
    /// The disk of the image store is full, in its own words.
    ImageStore { cause: String },
}

/// Data that a request would write to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Files or memory of a sandbox, for a snapshot or a pause.
    State,
    /// Copy of the files that a new sandbox begins with.
    Copy,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Full::Database => {
                f.write_str("the disk with the server's database is full; destroy sandboxes or free space on it")
            }
            Full::Archives => f.write_str(
                "the disk with the server's data has no room for files of builds, or cannot be written; free space on it",
            ),
            Full::Space { provider, left_mb, reserve_mb } => write!(
                f,
                "the disk with the boxes of `{provider}` has {left_mb} MiB left, and `limits.reserve_disk_mb` keeps \
                 {reserve_mb} MiB free; destroy sandboxes or free space on it"
            ),
            Full::Inodes { provider, left, reserve } => write!(
                f,
                "the disk with the boxes of `{provider}` has {left} inodes left, and \
                 `limits.reserve_inodes` keeps {reserve} free; destroy sandboxes or remove files \
                 from it"
            ),
            Full::Headroom { provider, write, needed_mb, free_mb, promised_mb } => write!(
                f,
                "not enough disk space: the sandbox {write} {needed_mb} MiB; the disk with the boxes of `{provider}` \
                 has {free_mb} MiB above `limits.reserve_disk_mb`, {promised_mb} of them reserved by writes in \
                 progress; retry later or free space"
            ),
            Full::Provider { cause } | Full::ImageStore { cause } => f.write_str(cause),
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Write::State => "needs up to",
            Write::Copy => "starts with a copy of",
        })
    }
}
