//! Snapshots as copies of the layers of a box, for a server that may not mount image files.
//!
//! ```text
//! <data>/native/snapshots/<snapshot id>/layers/<overlay>/   copy of the upper layer of an overlay
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::syncfs;

use super::prepared_dirs::{layers, open_dir};
use crate::Result;
use crate::local::fault::{not_made, not_written};
use crate::local::folder::BoxFolder;
use crate::local::host_rootfs::ROOT_OVERLAY;
use crate::local::snapshot_folder::{SnapshotFolder, removed};
use crate::local::tree_copy::copy_layer;
use crate::local::usage::usage;

/// Returns the folder with the copies of a snapshot, which is there unless the snapshot is of image files.
pub(super) fn copies(snapshot: &SnapshotFolder) -> PathBuf {
    snapshot.path().join("layers")
}

/// Copies the upper layers of a box, whose processes stand still, into the folder of a snapshot. Returns the
/// bytes of the copies, which are on the disk. Blocks.
pub(super) fn keep(folder: &BoxFolder, new: &SnapshotFolder) -> io::Result<u64> {
    let kept = copies(new);
    open_dir(&kept)?;
    for overlay in fs::read_dir(layers(folder))? {
        let overlay = overlay?;
        let upper = overlay.path().join("upper");
        if upper.is_dir() {
            let copy = kept.join(overlay.file_name());
            open_dir(&copy)?;
            copy_layer(&upper, &copy, &shown_at(&copy))?;
        }
    }
    syncfs(File::open(&kept)?)?;
    Ok(usage(&kept, None)?.bytes)
}

/// Copies the layers of a snapshot into the folder of a box that is made from it.
pub(super) async fn restore(snapshot: &SnapshotFolder, folder: &BoxFolder) -> Result<()> {
    let from = snapshot.clone();
    let to = layers(folder);
    let restored = tokio::task::spawn_blocking(move || {
        let copied = copy_into(&copies(&from), &to);
        // Files that a removal deletes are missing in the copy, which notices nothing.
        if from.path().exists() { copied.map_err(not_written) } else { Err(removed()) }
    });
    restored.await.unwrap_or_else(|error| Err(not_made(error)))
}

fn copy_into(kept: &Path, layers: &Path) -> io::Result<()> {
    for copy in fs::read_dir(kept)? {
        let copy = copy?.path();
        let overlay = layers.join(copy.file_name().unwrap_or_default());
        let upper = overlay.join("upper");
        for dir in [layers, &overlay, &upper] {
            match open_dir(dir) {
                // The server may have made them in advance.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        copy_layer(&copy, &upper, &shown_at(&copy))?;
    }
    Ok(())
}

/// Returns the path at which boxes see the overlay whose copy is at `copy`.
fn shown_at(copy: &Path) -> PathBuf {
    let name = copy.file_name().unwrap_or_default();
    if name == ROOT_OVERLAY { PathBuf::from("/") } else { Path::new("/").join(name) }
}
