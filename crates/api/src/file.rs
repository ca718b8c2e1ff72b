//! Files in a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FileMode, FilePath, TextEncoding};

/// On the content of a file: its permission bits, four octal digits.
pub const FILE_MODE_HEADER: &str = "x-file-mode";
/// On the content of a file: when it changed last (RFC 3339, UTC).
pub const FILE_MODIFIED_HEADER: &str = "x-file-modified";

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFileRequest {
    /// Absolute path.
    #[schema(value_type = FilePath)]
    pub path: String,
    /// The whole content.
    pub content: String,
    /// Octal permission bits such as `644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FileMode>)]
    pub mode: Option<String>,
    /// How `content` is written here.
    #[serde(default)]
    pub encoding: TextEncoding,
}

/// A file to write at the path of the URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutFileRequest {
    /// The whole content.
    pub content: String,
    /// Octal permission bits such as `644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FileMode>)]
    pub mode: Option<String>,
    /// How `content` is written here.
    #[serde(default)]
    pub encoding: TextEncoding,
}

/// A move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Absolute path of what is there.
    #[schema(value_type = FilePath)]
    pub old_path: String,
    /// Absolute path of where it goes; a file there is replaced.
    #[schema(value_type = FilePath)]
    pub new_path: String,
}

/// A change of mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChmodRequest {
    /// Absolute path.
    #[schema(value_type = FilePath)]
    pub path: String,
    /// Octal permission bits such as `755`.
    #[schema(value_type = FileMode)]
    pub mode: String,
}

/// A file or directory; a link is described itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    /// The last component.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// When its content changed last (RFC 3339, UTC).
    pub mod_time: String,
    /// Four octal digits.
    pub mode: String,
    /// Whether it is a symbolic link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_symlink: bool,
    /// Where a symbolic link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}
