//! Snapshots of images that a provider takes by itself.

#![warn(missing_docs)]

use domain::Timestamp;

/// Snapshots from which a provider makes the boxes of an image, instead of starting each from nothing. It
/// takes and removes them by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageSnapshots {
    /// Snapshots that are there.
    pub snapshots: Vec<ImageSnapshot>,
    /// Number of boxes that could not be made from one, and were started from nothing.
    pub fallbacks: u64,
}

/// Snapshot of a box of an image that has run nothing yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSnapshot {
    /// Name of the snapshot, which tells it from others.
    pub name: String,
    /// Digest of the image; empty for one without files.
    pub image: String,
    /// Release of the kernel of the box, if it has one of its own.
    pub kernel: Option<String>,
    /// Bytes that it takes.
    pub size_bytes: u64,
    /// Time at which it was taken.
    pub created: Timestamp,
}
