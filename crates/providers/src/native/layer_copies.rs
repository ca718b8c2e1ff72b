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

#[cfg(test)]
mod test {
    use std::time::Duration;

    use domain::SnapshotId;

    use super::*;
    use crate::Error;
    use crate::local::folder::Folders;

    const FILES: usize = 300;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_box_has_all_files_of_its_snapshot_or_hears_that_the_snapshot_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let folders = Folders::make(temp.path().to_owned(), 0o700).unwrap();
        folders.make_snapshots().unwrap();
        let mut refused = 0;
        for round in 0..40_u8 {
            let snapshot = folders.snapshot(&SnapshotId::from_entropy([round; 10]));
            snapshot.make().unwrap();
            let kept = copies(&snapshot).join("usr");
            fs::create_dir_all(&kept).unwrap();
            (0..FILES).for_each(|number| fs::write(kept.join(number.to_string()), "kept").unwrap());
            let folder = BoxFolder::at(temp.path().join(format!("box-{round}")));
            folder.make().unwrap();
            let trash = temp.path().join(format!("trash-{round}"));
            let removed = snapshot.clone();
            let removal = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(u64::from(round) * 250));
                fs::rename(removed.path(), &trash).unwrap();
                host_disk::remove_tree(&trash).unwrap();
            });
            let restored = restore(&snapshot, &folder).await;
            removal.join().unwrap();
            match restored {
                Ok(()) => assert_eq!(fs::read_dir(layers(&folder).join("usr/upper")).unwrap().count(), FILES),
                Err(error) => {
                    assert!(matches!(error, Error::NotFound(_)), "{error:?}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "no removal came in time");
    }
}
