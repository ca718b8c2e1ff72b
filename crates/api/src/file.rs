//! Files in a sandbox: requests and descriptions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FileMode, FilePath, TextEncoding};

/// Response header with the permission bits of a file, four octal digits.
pub const FILE_MODE_HEADER: &str = "x-file-mode";
/// Response header with the time of the last change of a file's content (RFC 3339, UTC).
pub const FILE_MODIFIED_HEADER: &str = "x-file-modified";

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFileRequest {
    /// Absolute path of the file.
    #[schema(value_type = FilePath)]
    pub path: String,
    /// Content of the whole file.
    pub content: String,
    /// Octal permission bits such as `644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FileMode>)]
    pub mode: Option<String>,
    /// Encoding of `content` in this request.
    #[serde(default)]
    pub encoding: TextEncoding,
}

/// A file to write at the path in the URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutFileRequest {
    /// Content of the whole file.
    pub content: String,
    /// Octal permission bits such as `644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FileMode>)]
    pub mode: Option<String>,
    /// Encoding of `content` in this request.
    #[serde(default)]
    pub encoding: TextEncoding,
}

/// A path to move, and its new name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Absolute path of the source.
    #[schema(value_type = FilePath)]
    pub old_path: String,
    /// Absolute path of the destination; a file there is replaced.
    #[schema(value_type = FilePath)]
    pub new_path: String,
}

/// New permission bits of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChmodRequest {
    /// Absolute path of the file.
    #[schema(value_type = FilePath)]
    pub path: String,
    /// Octal permission bits such as `755`.
    #[schema(value_type = FileMode)]
    pub mode: String,
}

/// A change of a file that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// `created`, `modified`, `deleted`, `attributes`, or `overflow`: changes are missing from here on.
    #[serde(rename = "type")]
    pub kind: String,
    /// Absolute path of the file; absent for an overflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// True for a directory.
    #[serde(default)]
    pub is_dir: bool,
}

impl FileChange {
    /// Type that says that changes are missing.
    pub const OVERFLOW: &'static str = "overflow";
}

/// The fields of one change in the `text/event-stream` format. For the API description only.
#[derive(Debug, ToSchema)]
pub struct FileChangeEvent {
    /// Type: the `type` of the [`FileChange`].
    pub event: String,
    /// The [`FileChange`] as JSON.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

/// Result of unpacking an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unpacked {
    /// Number of files, directories and links in it.
    pub members: u64,
    /// Total size of its files, in bytes.
    pub bytes: u64,
}

/// A file, directory or symbolic link; a link is not followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    /// Last component of the path.
    pub name: String,
    /// Absolute path in the sandbox.
    pub path: String,
    /// Size of the content, in bytes.
    pub size: u64,
    /// True for a directory.
    pub is_dir: bool,
    /// Time of the last change of its content (RFC 3339, UTC).
    pub mod_time: String,
    /// Permission bits, four octal digits.
    pub mode: String,
    /// True for a symbolic link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_symlink: bool,
    /// Target of a symbolic link; absent for anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}
