//! In-memory catalog of the images in the store: their metadata and their holders.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use domain::Chain;
use oci_spec::image::{ImageConfiguration, ImageManifest};

use crate::Store;
use crate::digest::is_digest;
use crate::disk;
use crate::error::{Error, Result};
use crate::image::{Detail, Image, ImageGuard, Inner, LayerDetail, Run};
use crate::manifest::{DOCUMENT_BYTES_MAX, Document, configuration};
use crate::name::{Wanted, not_here};
use crate::platform::Platform;

/// Cached metadata and holders of images.
#[derive(Debug, Default)]
pub(super) struct Catalog {
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

impl Store {
    pub(super) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds an image that is unpacked in the store.
    pub(super) fn hold(&self, digest: &str) -> Option<ImageGuard> {
        if !is_digest(digest) {
            return None;
        }
        let mut catalog = self.catalog();
        if catalog.removing.contains(digest) {
            return None;
        }
        if let Some(inner) = catalog.held.get(digest).and_then(Weak::upgrade) {
            return Some(ImageGuard { inner });
        }
        let root = self.trees.find(digest)?;
        let known = match self.known_in(&mut catalog, digest) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(digest, error = %Chain(&error), "an image here cannot be used");
                return None;
            }
        };
        let inner = Arc::new(Inner { digest: digest.to_owned(), root, run: known.run.clone() });
        catalog.held.retain(|_, held| held.strong_count() > 0);
        catalog.held.insert(digest.to_owned(), Arc::downgrade(&inner));
        Some(ImageGuard { inner })
    }

    /// Returns the number of handles that hold this image.
    pub(super) fn holders(&self, digest: &str) -> usize {
        self.catalog().held.get(digest).map_or(0, Weak::strong_count)
    }

    /// Returns the digests of the held images.
    pub(super) fn all_held(&self) -> Vec<String> {
        let catalog = self.catalog();
        catalog.held.iter().filter(|(_, held)| held.strong_count() > 0).map(|(digest, _)| digest.clone()).collect()
    }

    /// Refuses new holders of this image until [`Store::is_removed`]; fails with the number of
    /// holders if there are any.
    pub(super) fn begin_removal(&self, digest: &str) -> Result<(), usize> {
        let mut catalog = self.catalog();
        let holders = catalog.held.get(digest).map_or(0, Weak::strong_count);
        if holders > 0 {
            return Err(holders);
        }
        catalog.removing.insert(digest.to_owned());
        Ok(())
    }

    /// Ends the removal, successful or not.
    pub(super) fn is_removed(&self, digest: &str) {
        let mut catalog = self.catalog();
        catalog.removing.remove(digest);
        catalog.known.remove(digest);
        catalog.held.remove(digest);
    }

    /// Waits until no removal of this image is running.
    pub(super) async fn removed(&self, digest: &str) {
        while self.catalog().removing.contains(digest) {
            let _removals = self.removals.lock().await;
        }
    }

    /// Returns the manifest and configuration of an image.
    pub(super) fn known(&self, digest: &str) -> Result<Arc<Known>> {
        self.known_in(&mut self.catalog(), digest)
    }

    fn known_in(&self, catalog: &mut Catalog, digest: &str) -> Result<Arc<Known>> {
        if let Some(known) = catalog.known.get(digest) {
            return Ok(Arc::clone(known));
        }
        let fails = |error: io::Error| {
            if error.kind() == io::ErrorKind::NotFound {
                return Error::NotFound(not_here(digest));
            }
            disk::failed("read an image", error)
        };
        let bytes = self.layout.read_blob(digest, DOCUMENT_BYTES_MAX).map_err(fails)?;
        let image = format!("`{digest}`");
        let Document::Manifest(manifest) = Document::parse(&bytes, &image)? else {
            return Err(Error::Invalid(format!("{image} is an index and no image")));
        };
        let config = self.layout.read_blob(manifest.config().digest().as_ref(), DOCUMENT_BYTES_MAX).map_err(fails)?;
        let config = configuration(&config, &manifest, &image)?;
        let run = Run::of(&config, &image)?;
        let known = Arc::new(Known { manifest, config, run, manifest_bytes: bytes.len() as u64 });
        catalog.known.insert(digest.to_owned(), Arc::clone(&known));
        Ok(known)
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
                    tracing::warn!(digest, error = %Chain(&error), "an image here cannot be read");
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
}
