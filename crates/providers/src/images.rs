//! The image store: images of registries and archives, unpacked and shared by
//! every provider that needs a root file system on disk.

mod config;
pub(crate) mod desk;
mod fetch;
mod garbage;
mod import;
pub(crate) mod layout;
pub(crate) mod login;
mod manifest;
pub(crate) mod name;
mod platform;
mod processors;
pub(crate) mod pull;
mod registry;
mod shelf;
pub mod trees;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use async_trait::async_trait;
use domain::Asker;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use guest_protocol::Defaults;

use crate::{ByteStream, DiskUsage, Error, ImageSource, Result, Room};
pub use config::{ImagesConfig, PullPolicy, RegistryConfig, Reserve};
pub use desk::Interest;
use layout::Layout;
use name::{Name, Wanted};
use pull::Pulls;
use registry::Registries;
use shelf::Shelf;
use trees::{Bounds, Compression, Layer, Trees};

/// The store. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Images {
    inner: Arc<Store>,
}

#[derive(Debug)]
struct Store {
    config: ImagesConfig,
    layout: Layout,
    trees: Trees,
    registries: Registries,
    pulls: Pulls,
    /// One for each blob and tree that somebody is writing.
    turns: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    shelf: Mutex<Shelf>,
    /// Taken by whoever removes images.
    removals: tokio::sync::Mutex<()>,
}

/// An image that is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The digest of its manifest, `sha256:…`.
    pub digest: String,
    /// Its names in full, such as `docker.io/library/python:3.12`, sorted. Empty for
    /// one that only boxes still hold.
    pub names: Vec<String>,
    /// What it is made for, such as `linux/amd64` or `linux/arm/v7`.
    pub platform: String,
    /// When it was made, in RFC 3339, if it says so.
    pub created: Option<String>,
    /// How many layers it has.
    pub layers: usize,
    /// What has to be downloaded for it, in bytes.
    pub size_bytes: u64,
    /// What its files take, unpacked, in bytes. Files that several images have
    /// count in each.
    pub unpacked_bytes: u64,
    /// How many boxes hold it.
    pub boxes: usize,
    /// When a box was last made of it, or it was pulled or imported.
    pub used_at: Option<SystemTime>,
}

/// Everything the store knows of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// What the list shows.
    pub image: Image,
    /// What it says of running it.
    pub run: Run,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The digest of its configuration, which Docker calls the image's id.
    pub config_digest: String,
    /// Its layers, the lowest first.
    pub layers: Vec<LayerDetail>,
}

/// A layer as the manifest has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerDetail {
    /// The digest of the layer as it is downloaded.
    pub digest: String,
    /// Its size as it is downloaded, in bytes.
    pub size_bytes: u64,
    /// Its media type.
    pub media_type: String,
}

/// How far a pull is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The registry is asked what the image is.
    Resolving,
    /// Layers are coming in.
    Downloading {
        /// Bytes that are here, those of earlier attempts and of other images too.
        bytes: u64,
        /// Bytes that the image has.
        bytes_total: u64,
    },
    /// Layers are being unpacked.
    Unpacking {
        /// Bytes of its layers that were unpacked so far, as they were downloaded.
        bytes: u64,
    },
    /// The image is here. Nothing follows.
    Done(Image),
}

/// What a clean-up removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// The digests of the images that went.
    pub images: Vec<String>,
    /// Bytes that are free again.
    pub freed_bytes: u64,
}

impl Images {
    /// Opens the store in `config.dir`, or makes one there, and removes what a crash
    /// left unfinished. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub fn open(config: ImagesConfig) -> Result<Images> {
        let fails = |error| disk("open the store of images", error);
        let layout = Layout::open(&config.dir).map_err(fails)?;
        let trees = Trees::open(&config.dir).map_err(fails)?;
        let registries = Registries::new(&config);
        let store = Store {
            config,
            layout,
            trees,
            registries,
            pulls: Pulls::default(),
            turns: Mutex::default(),
            shelf: Mutex::default(),
            removals: tokio::sync::Mutex::default(),
        };
        std::fs::create_dir_all(store.config.dir.join("used")).map_err(fails)?;
        Ok(Images { inner: Arc::new(store) })
    }

    /// The image of this name, for a box: pulled if it has to be, and held. Waits no
    /// longer than `config.pull_timeout`; a pull goes on after that.
    ///
    /// `name` may be the digest of an image that is here.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name, an image or a login that will not do, whatever the
    /// wait; [`Error::Unavailable`] for a registry that does not answer, or when the time
    /// is over; [`Error::Full`] if there is no room for it.
    pub async fn take(&self, name: &str) -> Result<Held> {
        self.take_for(name, None).await
    }

    /// The same for a caller, who shares the places for pulls with others.
    ///
    /// # Errors
    /// As [`Images::take`], and [`Error::Unavailable`] where it has its share of them.
    pub async fn take_for(&self, name: &str, asker: Option<Asker>) -> Result<Held> {
        let store = &self.inner;
        let name = match Wanted::parse(name)? {
            Wanted::Name(name) => name,
            Wanted::Digest(digest) => {
                store.removed(&digest).await;
                return match store.hold(&digest) {
                    Some(held) => {
                        store.touch(&digest);
                        Ok(held)
                    }
                    None => Err(Error::Invalid(format!(
                        "{}; pull it by its name, with `@{digest}` behind it",
                        pull::not_here(&digest)
                    ))),
                };
            }
        };
        let key = name.to_string();
        if !store.asks_always(&name)
            && let Some(digest) = store.layout.find(&key)
        {
            store.removed(&digest).await;
            if let Some(held) = store.hold(&digest) {
                store.touch(&digest);
                return Ok(held);
            }
        }
        if store.config.pull == PullPolicy::Never {
            return Err(Error::Invalid(format!(
                "{}, and `images.pull` is `never`; import it, or pull it with `tidebox image pull`",
                pull::not_here(&key)
            )));
        }
        let (pull, _interest) = store.begin(&name, asker).await?;
        store.wait(&name, pull).await
    }

    /// Holds an image again, by the digest that [`Held::digest`] gave. `None` if it is
    /// not here.
    #[must_use]
    pub fn hold(&self, digest: &str) -> Option<Held> {
        self.inner.hold(digest)
    }

    /// Asks the registry for this image, and downloads and unpacks what is not here.
    ///
    /// Several pulls of one name are one download. It goes on when the stream is
    /// dropped, until another needs its place. The last item is [`Progress::Done`] or an
    /// error.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name. Items of the stream: as [`Images::take`].
    pub async fn pull(&self, name: &str) -> Result<BoxStream<'static, Result<Progress>>> {
        let (progress, interest) = self.pull_for(name, None).await?;
        // Kept by the stream.
        Ok(progress.map(move |step| (step, &interest).0).boxed())
    }

    /// The same for a caller, who shares the places for pulls with others. The pull does
    /// not give way while the interest is held.
    ///
    /// # Errors
    /// As [`Images::pull`], and [`Error::Unavailable`] where it has its share of them.
    pub async fn pull_for(
        &self,
        name: &str,
        asker: Option<Asker>,
    ) -> Result<(BoxStream<'static, Result<Progress>>, Interest)> {
        let name = Name::parse(name)?;
        let (pull, interest) = self.inner.begin(&name, asker).await?;
        Ok((pull::watching(pull), interest))
    }

    /// Takes images in from an archive: what `docker save` writes, a tar of an OCI
    /// layout, or a tar of a root file system, each plain, gzip or zstd. Without a
    /// `name` the archive has to name its images itself. It ends when nobody waits for it
    /// any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name or archive; [`Error::TooLarge`] for what is larger
    /// than an image may be; [`Error::Full`] if there is no room for it.
    pub async fn import(&self, name: Option<&str>, archive: ByteStream) -> Result<Vec<Image>> {
        self.import_for(name, archive, None).await
    }

    /// The same for a caller, who shares the places for imports with others.
    ///
    /// # Errors
    /// As [`Images::import`], and [`Error::Unavailable`] where there is no place, or it has
    /// its share of them.
    pub async fn import_for(
        &self,
        name: Option<&str>,
        archive: ByteStream,
        asker: Option<Asker>,
    ) -> Result<Vec<Image>> {
        let name = name.map(Name::parse).transpose()?;
        self.inner.import(name, archive, asker).await
    }

    /// Every image, by name.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(&self) -> Result<Vec<Image>> {
        self.inner.blocking("list images", |store| store.images()).await
    }

    /// The digest of the image of this name or digest, if it is here. Reads nothing
    /// from disk.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name.
    pub fn find(&self, name: &str) -> Result<Option<String>> {
        Ok(self.inner.find(&Wanted::parse(name)?).ok())
    }

    /// The image of this name or digest.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::NotFound`] if it is not here.
    pub async fn inspect(&self, name: &str) -> Result<Detail> {
        let digest = self.inner.find(&Wanted::parse(name)?)?;
        self.inner.blocking("read an image", move |store| store.detail(&digest)).await
    }

    /// Takes a name from its image, and removes the image with its last name. With a
    /// digest, removes the image with all its names. A pull of that name ends.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::NotFound`] if it is not here;
    /// [`Error::Conflict`] while a box or a pull holds it.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(Wanted::parse(name)?).await
    }

    /// Removes images that have no name and that nobody holds; with `all`, those that
    /// have one too.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn prune(&self, all: bool) -> Result<Pruned> {
        self.inner.prune(all).await
    }

    /// The store's own folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.inner.config.dir
    }

    /// Returns what the images take that nothing holds, shared files counted once for each.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn idle_usage(&self) -> Result<DiskUsage> {
        self.inner.idle_usage().await
    }

    /// Removes images that nothing holds, the longest unused first, until the disk has
    /// more free than `config.reserve`.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn make_room(&self) -> Result<Pruned> {
        self.inner.make_room().await
    }

    /// Ends pulls and imports that are under way, and waits for it. What is here of them stays and
    /// is gone on with.
    pub async fn close(&self) {
        self.inner.pulls.close().await;
    }
}

impl Store {
    /// Whether its registry is asked for this image although it is here.
    fn asks_always(&self, name: &Name) -> bool {
        // What a digest means never changes.
        self.config.pull == PullPolicy::Always && name.digest().is_none()
    }

    /// Makes work one that is waited for at the end, also if its caller has gone.
    fn waited_for<T, W: FnOnce(&Store) -> T>(self: &Arc<Self>, work: W) -> impl FnOnce() -> T + use<T, W> {
        let (store, under_way) = (Arc::clone(self), self.pulls.tasks.token());
        move || {
            let done = work(&store);
            drop(under_way);
            done
        }
    }

    /// Does work that blocks, out of the way of what does not.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        action: &'static str,
        work: impl FnOnce(&Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match tokio::task::spawn_blocking(self.waited_for(work)).await {
            Ok(done) => done,
            Err(error) => Err(Error::failed(action, error)),
        }
    }

    /// Does work that keeps a processor busy for long, one thread beside few others.
    async fn long_work<T: Send + 'static>(
        self: &Arc<Self>,
        action: &'static str,
        work: impl FnOnce(&Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = processors::work(self.waited_for(work));
        done.await.map_err(|error| Error::failed(action, error))?
    }

    /// Fails unless the disk has more free than what has to stay so.
    fn room(&self) -> Result<()> {
        room(&self.config.dir, self.config.reserve)
    }
}

#[async_trait]
impl ImageSource for Images {
    async fn check_image(&self, image: &str) -> Result<()> {
        match self.find(image)? {
            // It knows why nobody may be asked for it.
            None if self.inner.config.pull == PullPolicy::Never => self.take(image).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn is_awaited(&self, image: &str) -> bool {
        let Ok(Wanted::Name(name)) = Wanted::parse(image) else { return false };
        let is_here = self.inner.layout.find(&name.to_string()).is_some();
        self.inner.config.pull != PullPolicy::Never && (self.inner.asks_always(&name) || !is_here)
    }

    async fn digest(&self, image: &str) -> Option<String> {
        self.find(image).ok().flatten()
    }
}

/// Whether the disk has no room, be it for bytes or for files.
fn is_full(error: &io::Error) -> bool {
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge].contains(&error.kind())
}

/// What a fault of the store's disk means to the caller.
fn disk(action: &'static str, error: io::Error) -> Error {
    if !is_full(&error) {
        return Error::failed(action, error);
    }
    Error::Full(
        "the disk with the images of this server is full; remove images (`tidebox image prune`) or make room on it"
            .to_owned(),
    )
}

/// Fails unless the disk of `dir` has more free than what has to stay so.
fn room(dir: &Path, reserve: Reserve) -> Result<()> {
    let room = free(dir)?;
    if reserve.is_free(room) {
        return Ok(());
    }
    let (left, stay, of) = match room.entries {
        Some(left) if left <= reserve.inodes => (left, reserve.inodes, "inodes"),
        _ => (room.bytes, reserve.bytes, "bytes"),
    };
    Err(Error::Full(format!(
        "there is no room for the image: the disk is full, with {left} {of} left where images leave {stay} free; remove \
         images (`tidebox image prune`) or make room"
    )))
}

/// Returns what is free of the disk of `dir`.
fn free(dir: &Path) -> Result<Room> {
    Room::of(dir).map_err(|error| disk("see how much room there is for images", error))
}

/// An image that is on disk, whole, and stays there while this is held.
#[derive(Debug, Clone)]
pub struct Held {
    inner: Arc<Inner>,
}

/// One for all boxes that hold the same image; the store counts them.
#[derive(Debug)]
struct Inner {
    digest: String,
    root: PathBuf,
    run: Run,
}

/// What an image says of running it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// Environment, working directory and user.
    pub defaults: Defaults,
    /// Its entry point with its command; empty if it has neither.
    pub entrypoint: Vec<String>,
}

impl Run {
    /// Refuses a spawn of `image` that asks for an entry point where there is none.
    pub(crate) fn check(&self, image: &str, entrypoint: bool) -> Result<()> {
        if entrypoint && self.entrypoint.is_empty() {
            return Err(Error::Invalid(format!(
                "the image `{image}` has neither an entry point nor a command; leave `entrypoint` out"
            )));
        }
        Ok(())
    }
}

impl Held {
    /// The digest of its manifest, `sha256:…`: what to write down to hold it again.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.inner.digest
    }

    /// Its root file system: one directory that nobody ever changes, owned as the
    /// image says where we are root, and all ours otherwise.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// What it says of running it.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.inner.run
    }
}
