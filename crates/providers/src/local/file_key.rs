//! Identity of files that have several names.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Identity of a file, whatever its names are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKey {
    device: u64,
    inode: u64,
}

impl FileKey {
    pub(crate) fn of(metadata: &Metadata) -> FileKey {
        FileKey { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Returns the files directly in some folders. A folder that is missing has none.
pub(crate) fn files_in(dirs: impl IntoIterator<Item = PathBuf>) -> io::Result<HashSet<FileKey>> {
    let mut found = HashSet::new();
    for dir in dirs {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            // One that goes meanwhile is held no more.
            let Ok(metadata) = entry?.metadata() else { continue };
            if metadata.is_file() {
                found.insert(FileKey::of(&metadata));
            }
        }
    }
    Ok(found)
}
