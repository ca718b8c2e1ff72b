//! Changes of files.

use serde::{Deserialize, Serialize};

/// Maximum number of changes that a watcher keeps until they are taken; then some are missing.
pub const WATCHER_ROWS_MAX: usize = 4096;
/// Maximum size of these changes, in bytes of their paths.
pub const WATCHER_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of directories that one watch has.
pub const WATCHED_DIRECTORIES_MAX: usize = 8192;
/// Longest row of a watch, in bytes: a path and a name of 4 KiB each, each byte encoded as six.
pub const WATCH_ROW_BYTES_MAX: usize = 64 * 1024;

/// A request to report changes of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchFiles {
    /// Absolute path of a file, or of a directory whose entries are watched.
    pub path: String,
    /// True to watch all that is below the directory.
    pub recursive: bool,
}

/// A row of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchRow {
    /// A change.
    Change(FileChange),
    /// Changes are missing from here on: there were more than could be kept, or more directories than
    /// can be watched.
    Overflow,
}

/// A change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Kind of the change.
    pub kind: FileChangeKind,
    /// Absolute path of the file.
    pub path: String,
    /// True for a directory.
    pub is_dir: bool,
    /// True for a move from or to the path.
    #[serde(default)]
    pub moved: bool,
}

/// A watcher: a watch whose changes the agent keeps until they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watcher {
    /// Number of the watcher, never used twice in a box.
    pub watcher: u64,
}

/// The kinds of [`FileChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeKind {
    /// Made, or moved to this path.
    Created,
    /// Its content was written to.
    Modified,
    /// Removed, or moved from this path.
    Deleted,
    /// Its mode, owner, times or links were changed.
    Attributes,
}
