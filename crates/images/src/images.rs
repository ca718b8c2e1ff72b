//! The handle of the store, with everything that callers can do with it.

use std::path::Path;
use std::sync::Arc;

use domain::Asker;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use host_disk::DiskUsage;

use crate::config::{ImagesConfig, PullPolicy, Reserve};
use crate::desk::Interest;
use crate::error::{Error, Result};
use crate::garbage::Pruned;
use crate::image::{Detail, Image, ImageGuard, Run};
use crate::import::{Archive, Expected};
use crate::name::{Name, Wanted, not_here};
use crate::progress::{Progress, watching};
use crate::store::Store;

/// Image store. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Images {
    inner: Arc<Store>,
}

impl Images {
    /// Opens the store in `config.dir`, creating it if needed, and removes what a crash left
    /// unfinished. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub fn open(config: ImagesConfig) -> Result<Images> {
        Ok(Images { inner: Arc::new(Store::open(config)?) })
    }

    /// Returns the image of this name for a box, held so that it stays. Pulls it if needed, and
    /// waits at most `config.pull_timeout`; the pull continues after that.
    ///
    /// `name` may be the digest of an image in the store.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name, an image or a login that no retry fixes;
    /// [`Error::Unavailable`] if the registry does not answer or the wait is over;
    /// [`Error::Full`] if there is no room for the image.
    pub async fn take(&self, name: &str) -> Result<ImageGuard> {
        self.take_for(name, None).await
    }

    /// Does the same for a caller, which shares the slots for pulls with others.
    ///
    /// # Errors
    /// As [`Images::take`], and [`Error::Unavailable`] if the caller has its share of them.
    pub async fn take_for(&self, name: &str, asker: Option<Asker>) -> Result<ImageGuard> {
        let store = &self.inner;
        let name = match Wanted::parse(name)? {
            Wanted::Name(name) => name,
            Wanted::Digest(digest) => {
                store.removed(&digest).await;
                return match store.catalog.hold(&digest) {
                    Some(held) => {
                        store.catalog.touch(&digest);
                        Ok(held)
                    }
                    None => Err(Error::Invalid(format!("{}; pull it by name, as `NAME@{digest}`", not_here(&digest)))),
                };
            }
        };
        let key = name.to_string();
        if !self.asks_always(&name)
            && let Some(digest) = store.layout.find(&key)
        {
            store.removed(&digest).await;
            if let Some(held) = store.catalog.hold(&digest) {
                store.catalog.touch(&digest);
                return Ok(held);
            }
        }
        if store.config.pull == PullPolicy::Never {
            return Err(Error::Invalid(format!(
                "{}, and `images.pull` is `never`; import it, or pull it with `tidebox image pull`",
                not_here(&key)
            )));
        }
        let (pull, _interest) = store.begin(&name, asker).await?;
        store.wait(&name, pull).await
    }

    /// Holds an image again, by the digest that [`ImageGuard::digest`] returned. `None` if it is not in
    /// the store.
    #[must_use]
    pub fn hold(&self, digest: &str) -> Option<ImageGuard> {
        self.inner.catalog.hold(digest)
    }

    /// Asks the registry for this image, and downloads and unpacks what is not in the store.
    ///
    /// Several pulls of one name share one download. It continues after the stream is dropped,
    /// until another pull needs its slot. The last item is [`Progress::Done`] or an error.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name. Items of the stream: as [`Images::take`].
    pub async fn pull(&self, name: &str) -> Result<BoxStream<'static, Result<Progress>>> {
        let (progress, interest) = self.pull_for(name, None).await?;
        // The stream keeps the interest alive.
        Ok(progress.map(move |step| (step, &interest).0).boxed())
    }

    /// Does the same for a caller, which shares the slots for pulls with others. The pull does
    /// not give way while the interest is held.
    ///
    /// # Errors
    /// As [`Images::pull`], and [`Error::Unavailable`] if the caller has its share of them.
    pub async fn pull_for(
        &self,
        name: &str,
        asker: Option<Asker>,
    ) -> Result<(BoxStream<'static, Result<Progress>>, Interest)> {
        let name = Name::parse(name)?;
        let (pull, interest) = self.inner.begin(&name, asker).await?;
        Ok((watching(pull), interest))
    }

    /// Imports images from an archive: the output of `docker save`, a tar of an OCI layout, or a
    /// tar of a root file system, each plain, gzip or zstd. Without a `name` the archive has to
    /// name its images itself. The import ends when the future is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name or archive; [`Error::TooLarge`] for one larger than an
    /// image may be; [`Error::Full`] if there is no room for it.
    pub async fn import(&self, name: Option<&str>, archive: Archive) -> Result<Vec<Image>> {
        self.import_for(name, archive, None).await
    }

    /// Does the same for a caller, which shares the slots for imports with others.
    ///
    /// # Errors
    /// As [`Images::import`], and [`Error::Unavailable`] if no slot is free or the caller has its
    /// share of them.
    pub async fn import_for(&self, name: Option<&str>, archive: Archive, asker: Option<Asker>) -> Result<Vec<Image>> {
        let name = name.map(Name::parse).transpose()?;
        self.inner.import(Expected::Any(name), archive, asker).await
    }

    /// Imports a tar of a root file system as an image with these settings. No file in it is taken for
    /// the table of contents of an archive of images. The import ends when the future is dropped.
    ///
    /// # Errors
    /// As [`Images::import_for`].
    pub async fn import_root(&self, name: &str, run: Run, archive: Archive) -> Result<Image> {
        let images = self.inner.import(Expected::Root(Name::parse(name)?, run), archive, None).await?;
        images.into_iter().next().ok_or_else(|| Error::failed("import an image", "the import returned no image"))
    }

    /// Returns the names of images in the store that begin with `start`. Reads nothing from disk.
    #[must_use]
    pub fn names_from(&self, start: &str) -> Vec<String> {
        self.inner.layout.names_from(start)
    }

    /// Lists all images, by name.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(&self) -> Result<Vec<Image>> {
        self.inner.blocking("list images", |store| store.catalog.images()).await
    }

    /// Returns the digest of the image with this name or digest, if it is in the store. Reads
    /// nothing from disk.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name.
    pub fn find(&self, name: &str) -> Result<Option<String>> {
        Ok(self.inner.catalog.find(&Wanted::parse(name)?).ok())
    }

    /// Returns what images leave free of the disk.
    #[must_use]
    pub fn reserve(&self) -> Reserve {
        self.inner.config.reserve
    }

    /// Returns what the files of the image with this name or digest take, if it is in the store.
    #[must_use]
    pub fn usage(&self, name: &str) -> Option<DiskUsage> {
        self.inner.trees.usage(&self.find(name).ok()??)
    }

    /// Checks an image before a box is made of it. Asks no registry.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, and for an image that is not in the store if no registry
    /// may be asked for it.
    pub async fn check(&self, image: &str) -> Result<()> {
        match self.find(image)? {
            // The error of `take` gives the reason why no registry is asked.
            None if self.inner.config.pull == PullPolicy::Never => self.take(image).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Returns whether a box of this image has to wait for a registry.
    #[must_use]
    pub fn is_awaited(&self, image: &str) -> bool {
        let Ok(Wanted::Name(name)) = Wanted::parse(image) else { return false };
        let is_here = self.inner.layout.find(&name.to_string()).is_some();
        self.inner.config.pull != PullPolicy::Never && (self.asks_always(&name) || !is_here)
    }

    /// Returns the details of the image with this name or digest.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::NotFound`] if it is not in the store.
    pub async fn inspect(&self, name: &str) -> Result<Detail> {
        let digest = self.inner.catalog.find(&Wanted::parse(name)?)?;
        self.inner.blocking("read an image", move |store| store.catalog.detail(&digest)).await
    }

    /// Removes a name from its image, and the image with its last name. Given a digest, removes
    /// the image with all its names. A pull of that name is ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::NotFound`] if it is not in the store;
    /// [`Error::Conflict`] while a box or a pull holds it.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(Wanted::parse(name)?).await
    }

    /// Removes images that have no name and no holder; with `all`, also those with a name.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn prune(&self, all: bool) -> Result<Pruned> {
        self.inner.prune(all).await
    }

    /// Returns the store's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.inner.config.dir
    }

    /// Returns the disk usage of images without a holder. A shared file counts in each of its
    /// images.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn idle_usage(&self) -> Result<DiskUsage> {
        self.inner.idle_usage().await
    }

    /// Removes images without a holder, the longest unused first, until more of the disk is free
    /// than `config.reserve`.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn make_room(&self) -> Result<Pruned> {
        self.inner.make_room().await
    }

    /// Ends running pulls and imports soon, and refuses new ones: their callers get
    /// [`Error::Unavailable`]. Partial downloads of pulls stay and are resumed by the next pull.
    pub fn stop(&self) {
        self.inner.pulls.stop.cancel();
    }

    /// Does the same as [`Images::stop`], and waits until pulls and imports have ended.
    pub async fn close(&self) {
        self.inner.pulls.close().await;
    }

    /// Returns whether the registry is asked for this image although it is in the store.
    fn asks_always(&self, name: &Name) -> bool {
        // The content of a digest never changes.
        self.inner.config.pull == PullPolicy::Always && name.digest().is_none()
    }
}
