//! Account of a synchronization.

use serde::Serialize;

/// Account of a synchronization.
#[derive(Debug, Default, Serialize)]
pub struct Done {
    /// Files and links that were sent, and directories that were made.
    pub sent: u64,
    /// Bytes of their content.
    pub bytes: u64,
    /// Entries that were removed.
    pub removed: u64,
    /// Files and directories whose mode or time was set.
    pub changed: u64,
    /// Entries that were equal.
    pub equal: u64,
    /// Entries of the destination that the source does not have, and that stay.
    pub extra: u64,
    /// Devices, FIFOs and sockets.
    pub left_out: u64,
    /// Directories and files of the source that cannot be read.
    pub unreadable: u64,
    /// Files that were gone when their content was asked for, or could not be read.
    pub missing: u64,
    /// Paths that could not be changed.
    pub failed: u64,
    #[serde(skip)]
    pub failures: Vec<String>,
    pub dry_run: bool,
    /// Changes of a dry run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// A change that would be made.
#[derive(Debug, Serialize)]
pub struct Change {
    pub action: &'static str,
    pub path: String,
}
