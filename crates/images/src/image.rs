//! Images as callers see them, and the handles that hold them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use guest_protocol::Defaults;

use crate::error::{Error, Result};

/// Image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of the manifest, `sha256:…`.
    pub digest: String,
    /// Full names, such as `docker.io/library/python:3.12`, sorted. Empty if no name refers to it
    /// any more.
    pub names: Vec<String>,
    /// Platform, such as `linux/amd64` or `linux/arm/v7`.
    pub platform: String,
    /// Creation time in RFC 3339, if the image states one.
    pub created: Option<String>,
    /// Number of its layers.
    pub layers: usize,
    /// Size of the download, in bytes.
    pub size_bytes: u64,
    /// Size of its files, unpacked, in bytes. A file that several images have counts in each.
    pub unpacked_bytes: u64,
    /// Number of boxes that hold it.
    pub boxes: usize,
    /// Time of the last box made of it, or of its pull or import.
    pub used_at: Option<SystemTime>,
}

/// Image with the details of its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// Image as listed by [`Images::list`](crate::Images::list).
    pub image: Image,
    /// Settings for running it.
    pub run: Run,
    /// Labels from its configuration.
    pub labels: BTreeMap<String, String>,
    /// Digest of its configuration, which Docker calls the image's id.
    pub config_digest: String,
    /// Layers, the lowest first.
    pub layers: Vec<LayerDetail>,
}

/// Layer as the manifest lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerDetail {
    /// Digest of the layer as it is downloaded.
    pub digest: String,
    /// Size as it is downloaded, in bytes.
    pub size_bytes: u64,
    /// Media type stated by the manifest.
    pub media_type: String,
}

/// Complete image on disk, which is not removed while this is held.
#[derive(Debug, Clone)]
pub struct ImageGuard {
    pub(super) inner: Arc<Inner>,
}

/// State shared by all handles of one image; the store counts them.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) digest: String,
    pub(super) root: PathBuf,
    pub(super) run: Run,
}

/// Settings of an image for running it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// Environment, working directory and user.
    pub defaults: Defaults,
    /// Entry point followed by the command; empty if the image has neither.
    pub entrypoint: Vec<String>,
}

impl Run {
    /// Refuses a spawn of `image` that asks for its entry point if it has none.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the image.
    pub fn check(&self, image: &str, entrypoint: bool) -> Result<()> {
        if entrypoint && self.entrypoint.is_empty() {
            return Err(Error::Invalid(format!(
                "the image `{image}` has neither an entry point nor a command; leave `entrypoint` out"
            )));
        }
        Ok(())
    }
}

impl ImageGuard {
    /// Returns the digest of the manifest, `sha256:…`, by which the image can be held again.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.inner.digest
    }

    /// Returns the root file system: a directory that is never changed. If the server runs as
    /// root, files have the image's owners; otherwise they belong to the server's user.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// Returns the settings for running the image.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.inner.run
    }
}
