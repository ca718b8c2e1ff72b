//! Layers to unpack, and the limits on them.

use std::path::PathBuf;

use crate::config::Reserve;

/// Compression of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Plain bytes without compression.
    None,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames.
    Zstd,
}

/// Layer of an image: a tar archive.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Path of its blob.
    pub path: PathBuf,
    /// Compression of the blob.
    pub compression: Compression,
    /// Digest of the uncompressed content, as the image's configuration states it: `sha256:…`.
    pub diff_id: String,
}

/// Limits on the size of an image.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Uncompressed bytes of all its layers, with the holes of sparse files.
    pub bytes_max: u64,
    /// Files in all its layers.
    pub entries_max: u64,
    /// Part of the disk that stays free.
    pub reserve: Reserve,
}

impl Bounds {
    /// Most files of one image.
    pub const ENTRIES_MAX: u64 = 1_000_000;
}
