//! Catalog of the images in the store: their metadata, their holders and their last use.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use domain::Chain;
use oci_spec::image::{ImageConfiguration, ImageManifest};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::Timestamps;

use crate::digest::is_digest;
use crate::disk;
use crate::error::{Error, Result};
use crate::image::{Detail, Image, ImageGuard, Inner, LayerDetail, Run};
use crate::layout::Layout;
use crate::manifest::{DOCUMENT_BYTES_MAX, Document, configuration};
use crate::name::{Wanted, not_here};
use crate::platform::Platform;
use crate::rootfs::Trees;

/// Images in the store, by digest or name. It shares the folders of the store.
#[derive(Debug)]
pub(super) struct Catalog {
    layout: Layout,
    trees: Trees,
    /// Folder with an empty file for each image, whose time is that of its last use.
    used: PathBuf,
    state: Mutex<State>,
}

/// Cached metadata and holders of images.
#[derive(Debug, Default)]
struct State {
    known: HashMap<String, Arc<Known>>,
    held: HashMap<String, Weak<Inner>>,
    /// Images being removed, which cannot be held any more.
    removing: HashSet<String>,
}

/// Manifest and configuration of an image.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) manifest: Box<ImageManifest>,
    config: ImageConfiguration,
    run: Run,
    /// Size of its manifest, in bytes.
    manifest_bytes: u64,
}

impl Catalog {
    /// Opens the catalog of the store in `dir`.
    pub(super) fn open(dir: &Path, layout: Layout, trees: Trees) -> io::Result<Catalog> {
        let used = dir.join("used");
        fs::create_dir_all(&used)?;
        Ok(Catalog { layout, trees, used, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Holds an image that is unpacked in the store.
    pub(super) fn hold(&self, digest: &str) -> Option<ImageGuard> {
        if !is_digest(digest) {
            return None;
        }
        let mut state = self.lock();
        if state.removing.contains(digest) {
            return None;
        }
        if let Some(inner) = state.held.get(digest).and_then(Weak::upgrade) {
            return Some(ImageGuard { inner });
        }
        let root = self.trees.find(digest)?;
        let known = match self.known_in(&mut state, digest) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(digest, error = %Chain(&error), "cannot use a stored image");
                return None;
            }
        };
        let inner = Arc::new(Inner { digest: digest.to_owned(), root, run: known.run.clone() });
        state.held.retain(|_, held| held.strong_count() > 0);
        state.held.insert(digest.to_owned(), Arc::downgrade(&inner));
        Some(ImageGuard { inner })
    }

    /// Returns the number of handles that hold this image.
    pub(super) fn holders(&self, digest: &str) -> usize {
        self.lock().held.get(digest).map_or(0, Weak::strong_count)
    }

    /// Returns the digests of the held images.
    pub(super) fn all_held(&self) -> Vec<String> {
        let state = self.lock();
        state.held.iter().filter(|(_, held)| held.strong_count() > 0).map(|(digest, _)| digest.clone()).collect()
    }

    /// Refuses new holders of this image until [`Catalog::end_removal`]; fails with the number of
    /// holders if there are any.
    pub(super) fn begin_removal(&self, digest: &str) -> Result<(), usize> {
        let mut state = self.lock();
        let holders = state.held.get(digest).map_or(0, Weak::strong_count);
        if holders > 0 {
            return Err(holders);
        }
        state.removing.insert(digest.to_owned());
        Ok(())
    }

    /// Ends the removal, successful or not.
    pub(super) fn end_removal(&self, digest: &str) {
        let mut state = self.lock();
        state.removing.remove(digest);
        state.known.remove(digest);
        state.held.remove(digest);
    }

    /// Returns whether this image is being removed.
    pub(super) fn is_being_removed(&self, digest: &str) -> bool {
        self.lock().removing.contains(digest)
    }

    /// Returns the manifest and configuration of an image.
    pub(super) fn known(&self, digest: &str) -> Result<Arc<Known>> {
        self.known_in(&mut self.lock(), digest)
    }

    fn known_in(&self, state: &mut State, digest: &str) -> Result<Arc<Known>> {
        if let Some(known) = state.known.get(digest) {
            return Ok(Arc::clone(known));
        }
        let bytes = self.read_blob(digest, digest)?;
        let image = format!("`{digest}`");
        let Document::Manifest(manifest) = Document::parse(&bytes, &image)? else {
            return Err(Error::Invalid(format!("{image} is an index, not an image")));
        };
        let config = self.read_blob(manifest.config().digest().as_ref(), digest)?;
        let config = configuration(&config, &manifest, &image)?;
        let run = Run::of(&config, &image)?;
        let known = Arc::new(Known { manifest, config, run, manifest_bytes: bytes.len() as u64 });
        state.known.insert(digest.to_owned(), Arc::clone(&known));
        Ok(known)
    }

    /// Reads the manifest or the configuration of an image.
    fn read_blob(&self, digest: &str, image: &str) -> Result<Vec<u8>> {
        self.layout.read_blob(digest, DOCUMENT_BYTES_MAX).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                return Error::NotFound(not_here(image));
            }
            disk::failed("read an image", error)
        })
    }

    /// Returns the digest of an image in the store.
    pub(super) fn find(&self, wanted: &Wanted) -> Result<String> {
        let found = match wanted {
            Wanted::Name(name) => self.layout.find(&name.to_string()),
            Wanted::Digest(digest) => self.layout.manifests().contains_key(digest).then(|| digest.clone()),
        };
        found.ok_or_else(|| {
            Error::NotFound(not_here(&match wanted {
                Wanted::Name(name) => name.to_string(),
                Wanted::Digest(digest) => digest.clone(),
            }))
        })
    }

    /// Returns an image as the list shows it.
    pub(super) fn image(&self, digest: &str) -> Result<Image> {
        let known = self.known(digest)?;
        let names = self.layout.manifests().remove(digest).unwrap_or_default();
        let blobs = known.manifest.layers().iter().chain([known.manifest.config()]);
        Ok(Image {
            digest: digest.to_owned(),
            names: names.into_iter().collect(),
            platform: Platform::of(&known.config).to_string(),
            created: known.config.created().clone(),
            layers: known.manifest.layers().len(),
            size_bytes: blobs.fold(known.manifest_bytes, |sum, blob| sum.saturating_add(blob.size())),
            unpacked_bytes: self.trees.bytes(digest).unwrap_or(0),
            boxes: self.holders(digest),
            used_at: self.used_at(digest),
        })
    }

    /// Lists all images, by name; those without one come last.
    pub(super) fn images(&self) -> Result<Vec<Image>> {
        let mut images = Vec::new();
        for digest in self.layout.manifests().into_keys() {
            match self.image(&digest) {
                Ok(image) => images.push(image),
                // An image that cannot be read does not hide the others.
                Err(error) => {
                    tracing::warn!(digest, error = %Chain(&error), "cannot read a stored image");
                }
            }
        }
        images
            .sort_by(|a, b| (a.names.is_empty(), &a.names, &a.digest).cmp(&(b.names.is_empty(), &b.names, &b.digest)));
        Ok(images)
    }

    pub(super) fn detail(&self, digest: &str) -> Result<Detail> {
        let known = self.known(digest)?;
        let labels = known.config.config().as_ref().and_then(|config| config.labels().clone()).unwrap_or_default();
        Ok(Detail {
            image: self.image(digest)?,
            run: known.run.clone(),
            labels: labels.into_iter().collect(),
            config_digest: known.manifest.config().digest().to_string(),
            layers: known
                .manifest
                .layers()
                .iter()
                .map(|layer| LayerDetail {
                    digest: layer.digest().to_string(),
                    size_bytes: layer.size(),
                    media_type: layer.media_type().to_string(),
                })
                .collect(),
        })
    }

    /// Returns the path of the file whose time is that of the image's last use.
    pub(super) fn used_path(&self, digest: &str) -> PathBuf {
        self.used.join(digest.trim_start_matches("sha256:"))
    }

    /// Records that an image was used just now. A failure is only logged.
    pub(super) fn touch(&self, digest: &str) {
        // `UTIME_NOW` would give two uses within some milliseconds the same time.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let touched =
            OpenOptions::new().create(true).truncate(false).write(true).open(self.used_path(digest)).and_then(|file| {
                let times = Timestamps { last_access: now, last_modification: now };
                Ok(rustix::fs::futimens(&file, &times)?)
            });
        if let Err(error) = touched {
            tracing::debug!(digest, error = %Chain(&error), "cannot record the use of an image");
        }
    }

    /// Returns the time of the last use of an image.
    fn used_at(&self, digest: &str) -> Option<SystemTime> {
        fs::metadata(self.used_path(digest)).ok()?.modified().ok()
    }
}
