//! Removal of names, then of images without a name, then of blobs and shared files that no image
//! needs. What a box holds stays.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::Arc;

use domain::Chain;
use host_disk::DiskUsage;

use crate::digest::is_digest;
use crate::disk;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::name::Wanted;
use crate::store::Store;

/// Result of a clean-up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Digests of the removed images.
    pub images: Vec<String>,
    /// Bytes freed on disk.
    pub freed_bytes: u64,
}

impl Store {
    /// Removes a name from its image, and the image with its last name.
    pub(super) async fn remove(self: &Arc<Self>, wanted: Wanted) -> Result<()> {
        let ended = match &wanted {
            Wanted::Name(name) => self.end_pull(&name.to_string()).await,
            Wanted::Digest(_) => false,
        };
        let _removals = self.removals.lock().await;
        self.blocking("remove an image", move |store| {
            let digest = match store.catalog.find(&wanted) {
                // There was only the pull, which has ended.
                Err(Error::NotFound(_)) if ended => return Ok(()),
                found => found?,
            };
            let last = match &wanted {
                Wanted::Digest(_) => true,
                Wanted::Name(_) => store.layout.manifests().get(&digest).is_none_or(|names| names.len() <= 1),
            };
            if last {
                store.drop_image(&digest)?;
            } else if let Wanted::Name(name) = &wanted {
                store.layout.remove_ref(&name.to_string()).map_err(disk::failing("remove an image"))?;
            }
            store.sweep(None).map(drop)
        })
        .await
    }

    /// Waits until no removal of this image is running.
    pub(super) async fn removed(&self, digest: &str) {
        while self.catalog.is_being_removed(digest) {
            let _removals = self.removals.lock().await;
        }
    }

    /// Removes images that have no name and no holder; with `all`, also those with a name.
    pub(super) async fn prune(self: &Arc<Self>, all: bool) -> Result<Pruned> {
        let _removals = self.removals.lock().await;
        self.blocking("prune images", move |store| {
            let mut pruned = Pruned::default();
            for (digest, names) in store.layout.manifests() {
                if (all || names.is_empty()) && store.try_drop(&digest)? {
                    pruned.images.push(digest);
                }
            }
            pruned.freed_bytes = store.sweep(None)?;
            Ok(pruned)
        })
        .await
    }

    /// Removes blobs that no image needs, limited to `only` if given.
    pub(super) async fn tidy(self: &Arc<Self>, only: Option<HashSet<String>>) {
        let _removals = self.removals.lock().await;
        if let Err(error) = self.blocking("clean up images", move |store| store.sweep(only.as_ref())).await {
            tracing::warn!(error = %Chain(&error), "cannot remove the leftovers of a failed pull; retrying later");
        }
    }

    /// Removes the longest unused images until the store is within `bytes_max`.
    pub(super) async fn evict(self: &Arc<Self>) {
        if self.config.bytes_max == 0 {
            return;
        }
        let _removals = self.removals.lock().await;
        if let Err(error) = self.blocking("evict images", |store| store.evict_now()).await {
            tracing::warn!(error = %Chain(&error), "the image store is larger than its limit");
        }
    }

    fn evict_now(&self) -> Result<()> {
        if self.bytes()? <= self.config.bytes_max {
            return Ok(());
        }
        // Blobs and files that no image needs go before images that may be used again.
        self.sweep(None)?;
        for image in self.by_use()? {
            let bytes = self.bytes()?;
            if bytes <= self.config.bytes_max {
                return Ok(());
            }
            if self.try_drop(&image.digest)? {
                tracing::info!(digest = image.digest, names = ?image.names, "removed an unused image");
                self.sweep(None)?;
            }
        }
        Ok(())
    }

    /// Returns the disk usage of images without a holder. A shared file counts in each of its
    /// images.
    pub(super) async fn idle_usage(self: &Arc<Self>) -> Result<DiskUsage> {
        self.blocking("measure the images", |store| {
            let mut idle = DiskUsage::default();
            for image in
                store.catalog.images()?.iter().filter(|image| image.boxes == 0 && !store.layout.is_fresh(&image.digest))
            {
                let tree = store.trees.usage(&image.digest).unwrap_or_default();
                idle.bytes = idle.bytes.saturating_add(tree.bytes).saturating_add(image.size_bytes);
                idle.entries = idle.entries.saturating_add(tree.entries);
            }
            Ok(idle)
        })
        .await
    }

    /// Removes what no image needs, then images without a holder, the longest unused first, until
    /// more of the disk is free than the reserve.
    pub(super) async fn make_room(self: &Arc<Self>) -> Result<Pruned> {
        let _removals = self.removals.lock().await;
        self.blocking("free space on the disk of the images", |store| {
            let mut pruned = Pruned { freed_bytes: store.sweep(None)?, ..Pruned::default() };
            for image in store.by_use()? {
                if store.room().is_ok() {
                    break;
                }
                if store.try_drop(&image.digest)? {
                    tracing::warn!(digest = image.digest, names = ?image.names, "removed an image to free disk space");
                    pruned.freed_bytes = pruned.freed_bytes.saturating_add(store.sweep(None)?);
                    pruned.images.push(image.digest);
                }
            }
            Ok(pruned)
        })
        .await
    }

    /// Returns every image: those without a name, then the others, the longest unused first.
    fn by_use(&self) -> Result<Vec<Image>> {
        let mut images = self.catalog.images()?;
        images.sort_by_key(|image| (!image.names.is_empty(), image.used_at));
        Ok(images)
    }

    /// Returns the size of the store, in bytes. A shared file counts in each of its images.
    fn bytes(&self) -> Result<u64> {
        let blobs = self.layout.bytes().map_err(disk::failing("measure the images"))?;
        let trees = self.layout.manifests().into_keys().filter_map(|digest| self.trees.bytes(&digest));
        Ok(trees.fold(blobs, u64::saturating_add))
    }

    /// Removes an image; returns `false` if it is in use.
    fn try_drop(&self, digest: &str) -> Result<bool> {
        match self.drop_image(digest) {
            Ok(()) => Ok(true),
            Err(Error::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes an image with all its names. The caller holds the lock `removals`, and sweeps
    /// afterwards.
    fn drop_image(&self, digest: &str) -> Result<()> {
        self.catalog.begin_removal(digest).map_err(|holders| {
            Error::Conflict(format!(
                "`{digest}` is in use by {holders} {}; remove {} first",
                if holders == 1 { "sandbox or snapshot" } else { "sandboxes or snapshots" },
                if holders == 1 { "it" } else { "them" },
            ))
        })?;
        // A pull marks the manifest and then checks for a removal. Here the order is reversed, so
        // that one of them sees the other.
        let done = if self.layout.is_fresh(digest) {
            Err(Error::Conflict(format!("`{digest}` is being pulled or imported; try again when that is done")))
        } else {
            let forgotten = match self.layout.forget(digest) {
                // The disk is too full even for a new index, so the tree goes first. A crash
                // between the two leaves a name; a client that asks for it pulls the image again.
                Err(error) if disk::is_full(&error) => self
                    .trees
                    .remove(digest)
                    .and_then(|()| self.trees.collect())
                    .and_then(|_| self.layout.forget(digest)),
                forgotten => forgotten.and_then(|()| self.trees.remove(digest)),
            };
            let _ = fs::remove_file(self.catalog.used_path(digest));
            forgotten.map_err(disk::failing("remove an image"))
        };
        self.catalog.end_removal(digest);
        done
    }

    /// Removes blobs, limited to `only` if given, and shared files that no image needs; returns
    /// the bytes freed. The caller holds the lock `removals`.
    fn sweep(&self, only: Option<&HashSet<String>>) -> Result<u64> {
        const ACTION: &str = "remove files that no image needs";
        // What a pull has from now on stays until the sweep is over.
        let _sweeping = self.layout.sweeping();
        self.remove_strays().map_err(disk::failing(ACTION))?;
        let mut live = HashSet::new();
        let images = self.layout.manifests().into_keys().chain(self.catalog.all_held());
        for digest in images {
            match self.catalog.known(&digest) {
                Ok(known) => {
                    let blobs = known.manifest.layers().iter().chain([known.manifest.config()]);
                    live.extend(blobs.map(|blob| blob.digest().to_string()));
                }
                // Its layers are unknown, and are pulled again with it.
                Err(Error::Invalid(_) | Error::NotFound(_)) => {}
                // A failing disk must not cost every layer.
                Err(error) => return Err(error),
            }
            live.insert(digest);
        }
        let blobs = self.layout.sweep(&live, only).map_err(disk::failing(ACTION))?;
        Ok(blobs.saturating_add(self.trees.collect().map_err(disk::failing(ACTION))?))
    }

    /// Removes trees of images that are not in the index: a crash came before the image was
    /// named, or the index was lost. Not for the start of the server, when boxes do not hold
    /// their images yet.
    fn remove_strays(&self) -> io::Result<()> {
        let images = self.layout.manifests();
        for entry in fs::read_dir(self.config.dir.join("trees"))? {
            let digest = format!("sha256:{}", entry?.file_name().to_string_lossy());
            let stray = is_digest(&digest) && !images.contains_key(&digest);
            if stray && self.catalog.begin_removal(&digest).is_ok() {
                // As in `drop_image`.
                let removed = if self.layout.is_fresh(&digest) { Ok(()) } else { self.trees.remove(&digest) };
                self.catalog.end_removal(&digest);
                removed?;
            }
        }
        Ok(())
    }
}
