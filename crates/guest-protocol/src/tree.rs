//! Directories of files: their description, chosen files of them, and changes of many at once. Paths below
//! a directory are percent-encoded, byte by byte, since they need not be UTF-8.

use serde::{Deserialize, Serialize};

/// Maximum number of paths of one [`Pack`], and of one [`Amend`].
pub const CHOSEN_PATHS_MAX: usize = 4096;
/// Maximum size of all these paths, encoded, in bytes.
pub const CHOSEN_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of failures that an [`Amended`] names.
pub const AMEND_FAILURES_MAX: usize = 100;
/// Largest [`Amended`], in bytes.
pub const AMENDED_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A request to describe all that is below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Absolute path of the directory.
    pub path: String,
    /// True to add the SHA-256 of each file.
    pub checksum: bool,
}

/// A line of a manifest, in the form of the API: servers pass it on as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ManifestRow {
    /// `directory`, `file`, `symlink`, `other` or, for the last line, `end`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Path below the directory, percent-encoded; empty for the directory itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size of a file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Permission bits, four octal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Time of the last change, in seconds since 1970 with nine decimals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtime: Option<String>,
    /// Target of a link, percent-encoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Path of an earlier line that is the same file by another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
    /// SHA-256 of a file's content in hexadecimal, where it was asked for and can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Number of lines before the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Number of directories and files that could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<u64>,
}

/// A request for a tar of chosen files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    /// Absolute path of the directory.
    pub path: String,
    /// Paths below it, percent-encoded.
    pub paths: Vec<String>,
}

/// A request to change many files below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amend {
    /// Absolute path of the directory.
    pub path: String,
    /// Paths to remove, percent-encoded, in this order; directories only if they are empty.
    pub remove: Vec<String>,
    /// Modes and times to set, after that.
    pub attributes: Vec<Attributes>,
}

/// Mode and time of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Path below the directory, percent-encoded; empty for the directory itself.
    pub path: String,
    /// Permission bits; unchanged without.
    pub mode: Option<u32>,
    /// Time of the last change, in seconds since 1970 with decimals; unchanged without.
    pub mtime: Option<String>,
}

/// Account of an [`Amend`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amended {
    /// Number of files, directories and links that were removed.
    pub removed: u64,
    /// Number of files whose mode or time was set.
    pub changed: u64,
    /// Number of paths with which it failed.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<AmendFailure>,
}

/// A path with which an [`Amend`] failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmendFailure {
    /// Path below the directory, percent-encoded.
    pub path: String,
    /// Reason.
    pub message: String,
}
