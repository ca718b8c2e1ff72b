//! Unpacked images: one root directory for each, with its layers applied in order.
//!
//! ```text
//! trees/<digest of the manifest>/root/      the image's files
//! trees/<digest of the manifest>/tree.json  layers, number and size of the files
//! files/…                                   hard links of the files, by content
//! trash/…                                   directories being removed
//! ```
//!
//! A tree is made beside the others and renamed once all of it is on disk. Other users cannot
//! enter the folders: a tree may hold programs that run with another identity than their
//! caller's.

mod archive;
pub(crate) mod contents;
pub(crate) mod layer;
mod pax;
mod root;
mod share;
pub(crate) mod stream;
#[cfg(test)]
mod test;
mod unpack;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use host_disk::{DiskUsage, remove_tree};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::digest::hex_of;
use crate::disk;
use crate::error::{Error, Result, stopped};
pub use layer::{Bounds, Compression, Layer};
use root::Root;
use share::Shared;
use stream::Budget;
use unpack::Unpacking;

/// Metadata of a tree, stored beside its root.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    layers: Vec<String>,
    entries: u64,
    bytes: u64,
}

/// Unpacked images of a store. Clones are handles of the same ones.
#[derive(Debug, Clone)]
pub struct Trees {
    inner: Arc<Folders>,
}

#[derive(Debug)]
struct Folders {
    trees: PathBuf,
    files: PathBuf,
    trash: PathBuf,
    /// Counter for unique names of unfinished and removed trees.
    next: AtomicU64,
}

impl Trees {
    /// Opens the trees in the store's folder `dir`, creating the folders if needed, and removes
    /// unfinished ones. Blocks.
    ///
    /// # Errors
    /// If the folders cannot be made, read or cleaned.
    pub fn open(dir: &Path) -> io::Result<Trees> {
        let folders = Folders {
            trees: closed_folder(&dir.join("trees"))?,
            files: closed_folder(&dir.join("files"))?,
            trash: closed_folder(&dir.join("trash"))?,
            next: AtomicU64::new(0),
        };
        let mut lost_power = false;
        let mut unfinished = Vec::new();
        for entry in fs::read_dir(&folders.trees)? {
            let entry = entry?;
            if hex_of(&format!("sha256:{}", entry.file_name().to_string_lossy())).is_none() {
                lost_power |= fs::read(entry.path().join(BOOT)).is_ok_and(|boot| boot != this_boot());
                unfinished.push(entry.path());
            }
        }
        if lost_power {
            // Files linked there last may never have reached the disk. Dropping all links costs
            // only their sharing with later images.
            tracing::warn!("the machine stopped while an image was being unpacked; not reusing shared files");
            share::collect(&folders.files, true)?;
        } else if !unfinished.is_empty() {
            rustix::fs::syncfs(File::open(&folders.files)?)?;
        }
        for path in unfinished.into_iter().chain(children(&folders.trash)?) {
            remove_tree(&path)?;
        }
        Ok(Trees { inner: Arc::new(folders) })
    }

    /// Returns the root directory of the image with this manifest, `sha256:…`, if it is unpacked.
    #[must_use]
    pub fn find(&self, digest: &str) -> Option<PathBuf> {
        Some(self.inner.trees.join(hex_of(digest)?).join("root")).filter(|root| root.is_dir())
    }

    /// Unpacks an image and returns its root directory; does nothing if that exists already.
    /// `progress` receives the number of bytes of the layers' blobs read so far. Unpacking ends
    /// soon after `stop` is cancelled.
    ///
    /// If the server runs as root, files have the image's owners; otherwise they belong to the
    /// server's user. Device nodes are left out. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an image that is malformed, damaged, has more files than `bounds`
    /// allow or differs from its configuration; [`Error::TooLarge`] for one of more bytes;
    /// [`Error::Full`] if there is no room; [`Error::Unavailable`] if it was stopped. In each
    /// case nothing of it is left.
    pub fn unpack(
        &self,
        digest: &str,
        layers: &[Layer],
        bounds: &Bounds,
        stop: &CancellationToken,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PathBuf> {
        let hex =
            hex_of(digest).ok_or_else(|| Error::Invalid(format!("`{}` is not a digest", digest.escape_debug())))?;
        if let Some(root) = self.find(digest) {
            return Ok(root);
        }
        let work = self.inner.begin(hex).map_err(disk::failing("unpack an image"))?;
        let budget = Budget::new(bounds, self.inner.trees.clone(), stop);
        let about = work.fill(&self.inner.files, layers, &budget, progress)?;
        let root = self.inner.trees.join(hex);
        work.write_down(&about).map_err(disk::failing("unpack an image"))?;
        // Writing may have taken long, and the caller may have gone meanwhile.
        if stop.is_cancelled() {
            return Err(stopped());
        }
        work.publish(&root).map_err(disk::failing("unpack an image"))?;
        Ok(root.join("root"))
    }

    /// Removes an image's tree; a missing one is no error. Blocks.
    ///
    /// # Errors
    /// If the tree cannot be moved or removed.
    pub fn remove(&self, digest: &str) -> io::Result<()> {
        let Some(hex) = hex_of(digest) else { return Ok(()) };
        let away = self.inner.unused(hex);
        match fs::rename(self.inner.trees.join(hex), &away) {
            Ok(()) => remove_tree(&away),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes shared files that no image has any more, and returns the bytes freed. Blocks.
    ///
    /// # Errors
    /// If the files cannot be read or removed.
    pub fn collect(&self) -> io::Result<u64> {
        share::collect(&self.inner.files, false)
    }

    /// Returns the size of the image's files together, in bytes, if it is unpacked. Files that a
    /// later layer replaces or hides count too.
    #[must_use]
    pub fn bytes(&self, digest: &str) -> Option<u64> {
        Some(self.usage(digest)?.bytes)
    }

    /// Returns the disk usage of the image's files, if it is unpacked, counted as in
    /// [`Trees::bytes`].
    #[must_use]
    pub fn usage(&self, digest: &str) -> Option<DiskUsage> {
        let text = fs::read(self.inner.trees.join(hex_of(digest)?).join("tree.json")).ok()?;
        let About { bytes, entries, .. } = serde_json::from_slice(&text).ok()?;
        Some(DiskUsage { bytes, entries, is_cut: false })
    }
}

/// File in an unfinished tree with the boot id of the machine when it was begun.
const BOOT: &str = "boot";

impl Folders {
    fn unused(&self, hex: &str) -> PathBuf {
        self.trash.join(format!("{hex}.{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// Makes the folders for a new tree.
    fn begin(&self, hex: &str) -> io::Result<Work> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.trees.join(format!("unfinished-{number}-{hex}"));
        let work = Work { folder: closed_folder(&folder)?, trash: self.trash.join(format!("{hex}.{number}")) };
        closed_folder(&work.trash)?;
        // Written to disk before any file is shared.
        let mut boot = File::create(work.folder.join(BOOT))?;
        boot.write_all(&this_boot())?;
        boot.sync_all()?;
        File::open(&work.folder)?.sync_all()?;
        File::open(&self.trees)?.sync_all()?;
        Ok(work)
    }
}

/// Unfinished tree, removed on drop.
#[derive(Debug)]
struct Work {
    folder: PathBuf,
    /// Folder for files that its layers remove.
    trash: PathBuf,
}

impl Work {
    fn fill(&self, files: &Path, layers: &[Layer], budget: &Budget, progress: &(dyn Fn(u64) + Sync)) -> Result<About> {
        let root = self.folder.join("root");
        let made = DirBuilder::new().mode(0o755).create(&root);
        made.map_err(disk::failing("unpack an image"))?;
        let shared = Shared::open(files, self.trash.join("spare"))?;
        let mut unpacking = Unpacking::new(Root::open(&root, &self.trash, budget)?, shared, budget);
        let read = AtomicU64::new(0);
        for layer in layers {
            unpacking.layer(layer, &|bytes| progress(read.fetch_add(bytes, Ordering::Relaxed) + bytes))?;
        }
        unpacking.finish()?;
        let seen = &unpacking.seen;
        if seen.devices > 0 {
            tracing::info!(devices = seen.devices, "skipped the device nodes of the image: a box has its own");
        }
        let layers = layers.iter().map(|layer| layer.diff_id.clone()).collect();
        Ok(About { layers, entries: seen.entries, bytes: seen.bytes })
    }

    /// Writes all of the tree to the disk.
    fn write_down(&self, about: &About) -> io::Result<()> {
        fs::write(self.folder.join("tree.json"), serde_json::to_vec(about)?)?;
        // One call for the file system: one for each file would take minutes.
        Ok(rustix::fs::syncfs(File::open(&self.folder)?)?)
    }

    /// Moves the tree, which is on disk, to its place.
    fn publish(self, place: &Path) -> io::Result<()> {
        fs::remove_file(self.folder.join(BOOT))?;
        match fs::rename(&self.folder, place) {
            Ok(()) => {}
            // Another task has unpacked the same image meanwhile.
            Err(error) if place.join("root").is_dir() => drop(error),
            Err(error) => return Err(error),
        }
        File::open(place.parent().unwrap_or(place))?.sync_all()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        for path in [&self.folder, &self.trash] {
            if let Err(error) = remove_tree(path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove the remains of an image; the next start \
                    retries");
            }
        }
    }
}

/// Makes a folder that other users cannot enter, or closes the existing one.
fn closed_folder(path: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    Ok(path.to_owned())
}

fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
}

/// Returns the boot id, which changes with each start of the machine.
fn this_boot() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}
