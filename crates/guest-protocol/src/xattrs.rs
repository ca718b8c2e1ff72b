//! Extended attributes of files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Extended attributes of a file, by the rest of their names behind a prefix.
pub type Xattrs = BTreeMap<String, String>;

/// Maximum size of the attributes of one file with one prefix, in bytes: names behind the prefix and values
/// together. Beyond it, those that come later by name are left out.
pub const XATTRS_BYTES_MAX: usize = 4096;
/// Maximum number of paths in one request.
pub const XATTR_PATHS_MAX: usize = 32;

/// A request for the attributes of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct XattrsOf {
    /// Absolute paths, at most [`XATTR_PATHS_MAX`]. A link is not followed.
    pub paths: Vec<String>,
    /// Beginning of the names of the attributes, such as `user.tool.`.
    pub prefix: String,
}

/// New attributes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewXattrs {
    /// Beginning of the names. Other attributes with it are removed.
    pub prefix: String,
    /// The attributes.
    pub values: Xattrs,
}
