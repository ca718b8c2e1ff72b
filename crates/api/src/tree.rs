//! Directories of a sandbox: their description, chosen files of them, and changes of many at once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FileMode, FilePath};

/// A line of a manifest. Its paths are percent-encoded, byte by byte, because they need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ManifestEntry {
    /// `directory`, `file`, `symlink`, `other` (a device, a FIFO, a socket) or, for the last line, `end`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Path below the directory; empty for the directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size of a file in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Permission bits, four octal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Time of the last change, in seconds since 1970 with nine decimals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime: Option<String>,
    /// Target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Path of an earlier line that is a hard link to the same file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
    /// Hexadecimal SHA-256 of a file's content, if it was requested and can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Number of lines before the last one; only in the last line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Number of directories and files that could not be read; only in the last line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<u64>,
}

/// Files to pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PackRequest {
    /// Absolute path of the directory.
    #[schema(value_type = FilePath)]
    pub path: String,
    /// Paths below it, percent-encoded.
    #[schema(max_items = 4096)]
    pub paths: Vec<String>,
}

/// Changes of many files below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AmendRequest {
    /// Absolute path of the directory.
    #[schema(value_type = FilePath)]
    pub path: String,
    /// Paths to remove, percent-encoded, in this order; directories only if they are empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 4096)]
    pub remove: Vec<String>,
    /// Modes and times to set after the removals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 4096)]
    pub attributes: Vec<FileAttributes>,
}

/// Mode and time of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileAttributes {
    /// Path below the directory, percent-encoded; empty for the directory itself.
    pub path: String,
    /// Octal permission bits such as `755`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FileMode>)]
    pub mode: Option<String>,
    /// Time of the last change, in seconds since 1970 with decimals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime: Option<String>,
}

/// Result of changing many files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Amended {
    /// Number of files, directories and links that were removed.
    pub removed: u64,
    /// Number of files whose mode or time was set.
    pub changed: u64,
    /// Number of paths that failed.
    pub failed: u64,
    /// The first hundred failures.
    pub failures: Vec<AmendFailure>,
}

/// A path that could not be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AmendFailure {
    /// Path below the directory, percent-encoded.
    pub path: String,
    /// Reason.
    pub message: String,
}
