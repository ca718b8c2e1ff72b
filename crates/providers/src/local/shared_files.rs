//! Files that several boxes and snapshots have under names of their own: the layers of snapshots, and the
//! memory of machines. Each takes the disk once, and goes with its last name.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Inner;
use super::backend::Backend;
use super::file_key::{FileKey, files_in};
use super::folder::{BoxFolder, Folders};
use super::snapshot_folder::SnapshotFolder;
use crate::DiskUsage;

/// Unit in which blocks are counted, on every file system.
const BLOCK_BYTES: u64 = 512;

impl Folders {
    /// Returns the bytes of the layers of a box that no snapshot has but `snapshot`.
    pub(crate) fn layers_beside(&self, folder: &BoxFolder, snapshot: &SnapshotFolder) -> io::Result<u64> {
        let others = self.all_snapshots()?.into_iter().map(|(_, other)| other.path().to_owned());
        let kept = files_in(others.filter(|other| other != snapshot.path()))?;
        let mut bytes = 0_u64;
        for path in folder.layers()? {
            let metadata = path.symlink_metadata()?;
            if !kept.contains(&FileKey::of(&metadata)) {
                bytes = bytes.saturating_add(metadata.blocks() * BLOCK_BYTES);
            }
        }
        Ok(bytes)
    }
}

impl<B: Backend> Inner<B> {
    /// Corrects the count of a box's own `files` by the files that it shares: those that the host keeps
    /// without the box are not its own, and the others it holds together with the boxes that have them too, in
    /// equal parts, so that no byte is charged to nobody.
    pub(super) fn charge_shared(
        &self,
        folder: &BoxFolder,
        files: &Path,
        mut found: DiskUsage,
    ) -> io::Result<DiskUsage> {
        let shared = self.backend.shared_files(folder)?;
        if shared.is_empty() {
            return Ok(found);
        }
        let charged = self.charged(&shared)?;
        for path in shared.iter().filter(|path| path.starts_with(files)) {
            found.bytes = found.bytes.saturating_sub(bytes_of(path)?);
            found.entries = found.entries.saturating_sub(1);
        }
        found.bytes = found.bytes.saturating_add(charged);
        Ok(found)
    }

    /// Returns the bytes that a box holds of the layers of removed snapshots.
    pub(super) fn held_of_layers(&self, folder: &BoxFolder) -> io::Result<u64> {
        self.charged(&folder.layers()?)
    }

    fn charged(&self, shared: &[PathBuf]) -> io::Result<u64> {
        let mut kept = None;
        let mut charged = 0_u64;
        for path in shared {
            let metadata = path.symlink_metadata()?;
            let bytes = metadata.blocks() * BLOCK_BYTES;
            let key = FileKey::of(&metadata);
            if metadata.nlink() <= 1 {
                charged = charged.saturating_add(bytes);
                continue;
            }
            let kept = match &kept {
                Some(kept) => kept,
                None => kept.insert(self.backend.kept_files()?),
            };
            if !kept.contains(&key) {
                charged = charged.saturating_add(bytes.div_ceil(metadata.nlink()));
            }
        }
        Ok(charged)
    }

    /// Returns the bytes of the layers that only boxes hold: those of snapshots that were removed.
    pub(super) fn left_bytes(&self) -> io::Result<u64> {
        let parts = self.backend.parts();
        let kept = self.backend.kept_files()?;
        let mut met = HashSet::new();
        let mut left = 0_u64;
        for (_, folder) in parts.folders.all()? {
            for path in folder.layers()? {
                // One of a box that is removed meanwhile goes with it.
                let Ok(metadata) = path.symlink_metadata() else { continue };
                let key = FileKey::of(&metadata);
                if !kept.contains(&key) && met.insert(key) {
                    left = left.saturating_add(metadata.blocks() * BLOCK_BYTES);
                }
            }
        }
        Ok(left)
    }
}

fn bytes_of(path: &Path) -> io::Result<u64> {
    Ok(path.symlink_metadata()?.blocks() * BLOCK_BYTES)
}
