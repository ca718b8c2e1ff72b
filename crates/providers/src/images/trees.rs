//! Images unpacked: for each one root directory, its layers applied one after the
//! other.
//!
//! ```text
//! trees/<digest of the manifest>/root/      the image's files
//! trees/<digest of the manifest>/tree.json  what is known of them
//! files/…                                   hard links of the files, by content
//! trash/…                                   what is being removed
//! ```
//!
//! A tree is made beside the others and given its name when all of it is on disk.
//! The folders are closed to everybody else: a tree may hold programs that give
//! whoever runs them another identity.

mod archive;
mod contents;
mod pax;
mod root;
mod share;
mod stream;
#[cfg(test)]
mod test;
mod unpack;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::Reserve;
use crate::removal::remove_tree;
use crate::{DiskUsage, Error, Result};
pub(in crate::images) use contents::{Contents, HEAD, compression_of};
use root::Root;
use share::Shared;
use stream::Budget;
pub(in crate::images) use stream::{decoder, stopped};
use unpack::Unpacking;

/// How a blob is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames.
    Zstd,
}

/// A layer of an image: a tar archive.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Where its blob is.
    pub path: PathBuf,
    /// How the blob is compressed.
    pub compression: Compression,
    /// What the image's configuration says of its uncompressed content: `sha256:…`.
    pub diff_id: String,
}

/// How much an image may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Uncompressed bytes of all its layers, with the holes of sparse files.
    pub bytes_max: u64,
    /// Files in all its layers.
    pub entries_max: u64,
    /// What stays free of the disk.
    pub reserve: Reserve,
}

impl Bounds {
    /// The most files that an image may have.
    pub const ENTRIES_MAX: u64 = 1_000_000;
}

/// What is known of a tree, beside it on disk.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    layers: Vec<String>,
    entries: u64,
    bytes: u64,
}

/// The unpacked images of a store. Clones are handles of the same ones.
#[derive(Debug, Clone)]
pub struct Trees {
    inner: Arc<Folders>,
}

#[derive(Debug)]
struct Folders {
    trees: PathBuf,
    files: PathBuf,
    trash: PathBuf,
    /// For names in `trash` that nobody else has.
    next: AtomicU64,
}

impl Trees {
    /// Opens the trees in the store's folder `dir`, or makes the folders for them,
    /// and removes what is unfinished. Blocks.
    ///
    /// # Errors
    /// If the folders cannot be made, read or cleaned.
    pub fn open(dir: &Path) -> io::Result<Trees> {
        let folder = |name| closed_folder(&dir.join(name));
        let folders = Folders {
            trees: folder("trees")?,
            files: folder("files")?,
            trash: folder("trash")?,
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
            // What was linked there last may never have reached the disk. It costs
            // the sharing of what is there, and nothing else.
            tracing::warn!("the machine stopped while an image was unpacked: its shared files are not used again");
            share::collect(&folders.files, true)?;
        } else if !unfinished.is_empty() {
            rustix::fs::syncfs(File::open(&folders.files)?)?;
        }
        for path in unfinished.into_iter().chain(children(&folders.trash)?) {
            remove_tree(&path)?;
        }
        Ok(Trees { inner: Arc::new(folders) })
    }

    /// The root directory of the image with this manifest, `sha256:…`, if it is
    /// unpacked.
    #[must_use]
    pub fn find(&self, digest: &str) -> Option<PathBuf> {
        Some(self.inner.trees.join(hex_of(digest)?).join("root")).filter(|root| root.is_dir())
    }

    /// Unpacks an image, and gives its root directory; does nothing if that is there
    /// already. `progress` is told how many bytes of the layers' blobs were read. It ends
    /// soon after `stop` is cancelled.
    ///
    /// Owners are as the image says where we are root, and all ours otherwise.
    /// Device nodes are left out. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an image that is malformed, damaged, of more files than
    /// `bounds` have or not what its configuration promises; [`Error::TooLarge`] for one
    /// of more bytes; [`Error::Full`] if there is no room; [`Error::Unavailable`] when it
    /// was stopped. Then nothing of it is left.
    pub fn unpack(
        &self,
        digest: &str,
        layers: &[Layer],
        bounds: &Bounds,
        stop: &CancellationToken,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PathBuf> {
        let hex = hex_of(digest).ok_or_else(|| Error::Invalid(format!("`{}` is no digest", digest.escape_debug())))?;
        if let Some(root) = self.find(digest) {
            return Ok(root);
        }
        let fault = |error| super::disk("unpack an image", error);
        let work = self.inner.begin(hex).map_err(fault)?;
        let budget = Budget::new(bounds, self.inner.trees.clone(), stop);
        let about = work.fill(&self.inner.files, layers, &budget, progress)?;
        let root = self.inner.trees.join(hex);
        work.publish(&root, &about).map_err(fault)?;
        Ok(root.join("root"))
    }

    /// Removes an image's tree; one that is not there is no error. Blocks.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn remove(&self, digest: &str) -> io::Result<()> {
        let Some(hex) = hex_of(digest) else { return Ok(()) };
        let away = self.inner.unused(hex);
        match fs::rename(self.inner.trees.join(hex), &away) {
            Ok(()) => remove_tree(&away),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes shared files that no image has any more; the bytes that this freed.
    /// Blocks.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn collect(&self) -> io::Result<u64> {
        share::collect(&self.inner.files, false)
    }

    /// How large the image's files are together, if it is unpacked, in bytes. Files
    /// that a later layer replaces or hides count too.
    #[must_use]
    pub fn bytes(&self, digest: &str) -> Option<u64> {
        Some(self.usage(digest)?.bytes)
    }

    /// Returns what the image's files take, if it is unpacked, counted as [`Trees::bytes`].
    #[must_use]
    pub fn usage(&self, digest: &str) -> Option<DiskUsage> {
        let text = fs::read(self.inner.trees.join(hex_of(digest)?).join("tree.json")).ok()?;
        let About { bytes, entries, .. } = serde_json::from_slice(&text).ok()?;
        Some(DiskUsage { bytes, entries, is_cut: false })
    }
}

/// Where an unfinished tree says during which run of the machine it was begun.
const BOOT: &str = "boot";

impl Folders {
    fn unused(&self, hex: &str) -> PathBuf {
        self.trash.join(format!("{hex}.{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// A folder for a tree that is being made.
    fn begin(&self, hex: &str) -> io::Result<Work> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.trees.join(format!("unfinished-{number}-{hex}"));
        let work = Work { folder: closed_folder(&folder)?, trash: self.trash.join(format!("{hex}.{number}")) };
        closed_folder(&work.trash)?;
        // On disk before anything is shared.
        let mut boot = File::create(work.folder.join(BOOT))?;
        boot.write_all(&this_boot())?;
        boot.sync_all()?;
        File::open(&work.folder)?.sync_all()?;
        File::open(&self.trees)?.sync_all()?;
        Ok(work)
    }
}

/// A tree that is being made. Dropped, it is removed.
#[derive(Debug)]
struct Work {
    folder: PathBuf,
    /// For what its layers remove.
    trash: PathBuf,
}

impl Work {
    fn fill(&self, files: &Path, layers: &[Layer], budget: &Budget, progress: &(dyn Fn(u64) + Sync)) -> Result<About> {
        let root = self.folder.join("root");
        let made = DirBuilder::new().mode(0o755).create(&root);
        made.map_err(|error| super::disk("unpack an image", error))?;
        let shared = Shared::open(files, self.trash.join("spare"))?;
        let mut unpacking = Unpacking::new(Root::open(&root, &self.trash, budget)?, shared, budget);
        let read = AtomicU64::new(0);
        let told = |bytes| progress(read.fetch_add(bytes, Ordering::Relaxed) + bytes);
        for layer in layers {
            unpacking.layer(layer, &told)?;
        }
        unpacking.finish()?;
        let seen = &unpacking.seen;
        if seen.devices > 0 {
            tracing::info!(devices = seen.devices, "device nodes of the image are left out: a box has its own");
        }
        let layers = layers.iter().map(|layer| layer.diff_id.clone()).collect();
        Ok(About { layers, entries: seen.entries, bytes: seen.bytes })
    }

    /// Gives the tree its place, once all of it is on disk.
    fn publish(self, place: &Path, about: &About) -> io::Result<()> {
        fs::write(self.folder.join("tree.json"), serde_json::to_vec(about)?)?;
        // One call for the file system, where one for each file would take minutes.
        rustix::fs::syncfs(File::open(&self.folder)?)?;
        fs::remove_file(self.folder.join(BOOT))?;
        match fs::rename(&self.folder, place) {
            Ok(()) => {}
            // Somebody else was quicker with the same image.
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
                tracing::warn!(path = %path.display(), %error, "cannot remove what is left of an image; the next start does");
            }
        }
    }
}

/// Makes a folder that nobody else may enter, or closes the one that is there.
fn closed_folder(path: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    Ok(path.to_owned())
}

fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
}

/// The part of a digest that names a folder; `None` for what is no digest.
fn hex_of(digest: &str) -> Option<&str> {
    super::layout::is_digest(digest).then(|| digest.trim_start_matches("sha256:"))
}

/// What tells this run of the machine from the one before.
fn this_boot() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}
