//! On-disk state of snapshots.
//!
//! ```text
//! <base>/snapshots/<snapshot id>/0.erofs         its layers, topmost first: what its box had changed,
//!                                1.erofs …       and the layers that the box was made of
//!                                snapshot.json   written last: without it the snapshot is unfinished
//! <base>/boxes/<sandbox id>/base/0.erofs …       the layers that a box was made of
//! ```
//!
//! A layer is written once and never changed, and has a name in each folder that needs it. So any
//! snapshot can be removed at any time: the file goes with its last name.
//!
//! After a crash of the host the record may be there and a layer not, if the snapshot was not finished: then
//! the service has not recorded it as ready, and removes it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use domain::SnapshotId;
use serde::{Deserialize, Serialize};

use super::folder::{BoxFolder, Folders};
use crate::Error;

/// Version of the format of [`SnapshotRecord`].
const FORMAT: u32 = 1;
/// Most layers of a snapshot: a mount takes time for each, and the kernel bounds their paths.
pub(crate) const LAYERS_MAX: usize = 64;
const RECORD: &str = "snapshot.json";
/// Unit in which blocks are counted, on every file system.
const BLOCK_BYTES: u64 = 512;

/// Properties of a snapshot besides its layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotRecord {
    format: u32,
    /// Digest of the image below the layers; `None` for `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
}

/// Folder of a snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotFolder(PathBuf);

impl Folders {
    fn snapshots(&self) -> PathBuf {
        self.base.join("snapshots")
    }

    /// Makes the folder of all snapshots. If it is missing later, the data folder is not there, and no
    /// snapshot counts as lost.
    pub(crate) fn make_snapshots(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.snapshots())
    }

    pub(crate) fn snapshot(&self, id: &SnapshotId) -> SnapshotFolder {
        SnapshotFolder(self.snapshots().join(id.as_str()))
    }

    /// Returns every folder that is named as a snapshot is.
    pub(crate) fn all_snapshots(&self) -> io::Result<Vec<(SnapshotId, SnapshotFolder)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.snapshots())? {
            let entry = entry?;
            if let Some(id) = entry.file_name().to_str().and_then(|name| SnapshotId::parse(name).ok()) {
                found.push((id, SnapshotFolder(entry.path())));
            }
        }
        Ok(found)
    }
}

impl SnapshotFolder {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder, which must not exist yet.
    pub(crate) fn make(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.0)
    }

    /// Makes the file of the topmost layer, and gives the layers of a box names behind it.
    pub(crate) fn begin(&self, folder: &BoxFolder) -> io::Result<File> {
        let top = File::options().read(true).write(true).create_new(true).mode(0o600).open(layer(&self.0, 0))?;
        for (at, file) in folder.layers()?.iter().enumerate() {
            fs::hard_link(file, layer(&self.0, at + 1))?;
        }
        Ok(top)
    }

    /// Completes the snapshot, so that it is there after a crash of the host. The layers below the topmost
    /// are on the disk already.
    pub(crate) fn finish(&self, image: Option<String>) -> io::Result<()> {
        let top = match File::open(layer(&self.0, 0)) {
            // Of a snapshot that is no layers.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            top => Some(top?),
        };
        let mut record = File::options().write(true).create_new(true).mode(0o600).open(self.0.join(RECORD))?;
        record.write_all(&serde_json::to_vec(&SnapshotRecord { format: FORMAT, image })?)?;
        let dirs = [self.0.as_path(), self.0.parent().unwrap_or(&self.0)].map(File::open);
        sync_together(top.into_iter().chain([record]).map(Ok).chain(dirs))
    }

    /// Reads the record; `None` if there is no snapshot, or an unfinished one.
    pub(crate) fn read(&self) -> Option<SnapshotRecord> {
        let record = serde_json::from_slice(&fs::read(self.0.join(RECORD)).ok()?).ok();
        record.filter(|record: &SnapshotRecord| record.format == FORMAT)
    }

    /// Returns the bytes of all layers on disk.
    pub(crate) fn size_bytes(&self) -> io::Result<u64> {
        size_of(&layers_in(&self.0)?)
    }
}

/// Syncs files at the same time: each sync waits for the disk to empty its cache, and those that wait together
/// wait once.
fn sync_together(files: impl Iterator<Item = io::Result<File>>) -> io::Result<()> {
    let files = files.collect::<io::Result<Vec<_>>>()?;
    thread::scope(|scope| {
        let syncs: Vec<_> = files.iter().map(|file| scope.spawn(|| file.sync_data())).collect();
        syncs.into_iter().try_for_each(|sync| sync.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Returns the error of a start whose snapshot was removed meanwhile.
pub(crate) fn removed() -> Error {
    Error::NotFound("the snapshot was removed in the meantime".to_owned())
}

impl BoxFolder {
    /// Returns the files of the layers that the box was made of, topmost first.
    pub(crate) fn layers(&self) -> io::Result<Vec<PathBuf>> {
        layers_in(&self.base())
    }

    /// Gives the layers of a snapshot names in the folder of a box that is made of it. Fails with
    /// [`ErrorKind::NotFound`] if the snapshot is removed.
    pub(crate) fn take_layers(&self, snapshot: &SnapshotFolder) -> io::Result<Vec<PathBuf>> {
        let base = self.base();
        let layers = layers_in(snapshot.path())?;
        if layers.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        DirBuilder::new().mode(0o700).create(&base)?;
        for (at, file) in layers.iter().enumerate() {
            fs::hard_link(file, layer(&base, at))?;
        }
        Ok((0..layers.len()).map(|at| layer(&base, at)).collect())
    }

    fn base(&self) -> PathBuf {
        self.path().join("base")
    }
}

fn layer(dir: &Path, at: usize) -> PathBuf {
    dir.join(format!("{at}.erofs"))
}

/// Returns the number of the layer in a file with this name; `None` for other files.
fn layer_number(name: &OsStr) -> Option<usize> {
    name.to_str()?.strip_suffix(".erofs")?.parse().ok()
}

fn size_of(files: &[PathBuf]) -> io::Result<u64> {
    files.iter().map(|file| Ok(file.symlink_metadata()?.blocks() * BLOCK_BYTES)).sum()
}

/// Returns the layers in a folder, topmost first; none if there is no such folder.
fn layers_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(layer_number(&entry?.file_name()));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|at| layer(dir, at)).collect())
}
