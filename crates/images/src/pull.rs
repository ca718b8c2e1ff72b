//! Image pulls: one task for each name, however many clients wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::{Asker, Chain};
use futures_util::{StreamExt as _, TryStreamExt as _};
use oci_spec::image::{ImageConfiguration, ImageManifest};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::desk::{Begun, Interest, Origin, Place, Wanted};
use crate::digest::is_digest;
use crate::disk;
use crate::error::{Error, Result};
use crate::image::{Image, ImageGuard, Run};
use crate::layout::descriptor;
use crate::layout::work::Work;
use crate::manifest::{DOCUMENT_BYTES_MAX, Document, INDEXES_MAX, compression, configuration, media_type};
use crate::name::{self, Name};
use crate::platform::{Platform, offered};
use crate::progress::{Meter, Progress, State, broke_off};
use crate::registry::Source;
use crate::rootfs::layer::{Bounds, Layer};
use crate::store::Store;

/// Most layers of one image downloaded at once.
const LAYERS_AT_ONCE_MAX: usize = 3;

/// Longest duration of a pull, whether clients wait for it or not.
pub const PULL_WAIT_MAX: Duration = Duration::from_secs(6 * 3600);

impl Store {
    /// Joins the running pull of this name, or starts one. While the interest is held, the pull
    /// does not give way to others.
    pub(super) async fn begin(
        self: &Arc<Self>,
        name: &Name,
        asker: Option<Asker>,
    ) -> Result<(watch::Receiver<State>, Interest)> {
        name.check_allowed(&self.config.allowed_registries)?;
        let key = name.to_string();
        if let Some(joined) = self.pulls.desk.join(&key) {
            return Ok(joined);
        }
        if self.pulls.stop.is_cancelled() {
            return Err(stopping());
        }
        let (state, watched) = watch::channel(State::Going(Progress::Resolving));
        let stop = self.pulls.stop.child_token();
        let wanted = Wanted {
            name: &key,
            asker,
            origin: Origin::of(name).await,
            is_bounded: self.layout.find(&key).is_none(),
            stop: stop.clone(),
            watched: watched.clone(),
        };
        match self.pulls.desk.begin(wanted)? {
            Begun::Joined(watched, interest) => Ok((watched, interest)),
            Begun::New(place, interest) => {
                self.run(name.clone(), place, state, stop);
                Ok((watched, interest))
            }
        }
    }

    /// Runs a pull on its own task.
    fn run(
        self: &Arc<Self>,
        name: Name,
        under_way: Place<watch::Receiver<State>>,
        state: watch::Sender<State>,
        stop: CancellationToken,
    ) {
        let store = Arc::clone(self);
        self.pulls.tasks.spawn(async move {
            let work = Arc::new(store.layout.work(stop.child_token()));
            let end = store.pull_in_time(&name, &work, &state).await;
            work.settled().await;
            let brought = work.end();
            match &end {
                Ok(_) => {}
                // Blobs that the disk has no room for must not take the room of others.
                Err(Error::Full(_)) => store.tidy(None).await,
                // The next request for this image resumes the pull.
                Err(Error::Unavailable(_) | Error::Failed { .. })
                    if !stop.is_cancelled() || store.pulls.stop.is_cancelled() => {}
                // This pull is not resumed.
                Err(_) => store.tidy(Some(brought)).await,
            }
            // Released first, so that a client that sees the end and asks again starts a new
            // pull.
            drop(under_way);
            state.send_replace(match end {
                Ok((image, held)) => {
                    tracing::info!(name = %name, digest = image.digest, "image pulled");
                    State::Done(image, held)
                }
                Err(error) => {
                    tracing::warn!(name = %name, error = %Chain(&error), "image pull failed");
                    State::Failed(Arc::new(error))
                }
            });
            store.evict().await;
        });
    }

    /// Pulls within [`PULL_WAIT_MAX`]; if the pull was stopped, the error gives the reason.
    async fn pull_in_time(
        self: &Arc<Self>,
        name: &Name,
        work: &Arc<Work>,
        state: &watch::Sender<State>,
    ) -> Result<(Image, ImageGuard)> {
        let pull = self.pull(name, work, state);
        tokio::pin!(pull);
        if let Ok(end) = tokio::time::timeout(PULL_WAIT_MAX, &mut pull).await {
            return end.map_err(|error| match (work.stop().is_cancelled(), self.pulls.stop.is_cancelled()) {
                (false, _) => error,
                (true, true) => stopping(),
                (true, false) => Error::Unavailable(format!(
                    "the pull of `{name}` was cancelled by a removal or in favor of another pull; pull it again if you \
                     need it"
                )),
            });
        }
        work.stop().cancel();
        pull.await.map_err(|_| Error::Unavailable(format!("the pull of `{name}` took too long")))
    }

    /// Ends the pull of this name; returns `false` if there is none.
    pub(super) async fn end_pull(&self, name: &str) -> bool {
        let Some((stop, mut state)) = self.pulls.desk.find(name) else { return false };
        stop.cancel();
        // A closed channel means that the pull has ended, too.
        let _ = state.wait_for(|state| !matches!(state, State::Going(_))).await;
        true
    }

    /// Waits for a pull, at most `config.pull_timeout`.
    pub(super) async fn wait(&self, name: &Name, mut pull: watch::Receiver<State>) -> Result<ImageGuard> {
        let wait = async {
            loop {
                match &*pull.borrow_and_update() {
                    State::Going(_) => {}
                    State::Done(_, held) => return Ok(held.clone()),
                    State::Failed(error) => return Err(error.again()),
                }
                pull.changed().await.map_err(|_| broke_off())?;
            }
        };
        match tokio::time::timeout(self.config.pull_timeout, wait).await {
            Ok(end) => end,
            Err(_) => {
                let far = match &*pull.borrow() {
                    State::Going(Progress::Downloading { bytes, bytes_total }) => {
                        format!(" ({} of {} MB downloaded)", bytes / 1_000_000, bytes_total.div_ceil(1_000_000))
                    }
                    State::Going(Progress::Unpacking { .. }) => " (unpacking)".to_owned(),
                    State::Going(_) | State::Done(..) | State::Failed(_) => String::new(),
                };
                Err(Error::Unavailable(format!(
                    "`{name}` is still being pulled{far}; the pull continues, try again later"
                )))
            }
        }
    }

    async fn pull(
        self: &Arc<Self>,
        name: &Name,
        work: &Arc<Work>,
        state: &watch::Sender<State>,
    ) -> Result<(Image, ImageGuard)> {
        let sources: Arc<[Source]> = self.registries.sources(name)?.into();
        let (bytes, manifest) = self.resolve(work, name, &sources).await?;
        let shown = format!("`{name}`");
        let meter = Arc::new(self.measure(work, &manifest, &shown, state.clone())?);
        self.blob(work, &shown, &sources, manifest.config(), &meter).await?;
        let config = self
            .layout
            .read_blob(manifest.config().digest().as_ref(), DOCUMENT_BYTES_MAX)
            .map_err(disk::failing("read an image's configuration"))?;
        let config = configuration(&config, &manifest, &shown)?;
        let host = Platform::host();
        let platform = Platform::of(&config);
        if !host.runs(&platform) {
            return Err(Error::Invalid(format!(
                "{shown} is built for {}, but this server is {host}; name an image for {host}",
                name::shown(&platform.to_string())
            )));
        }
        // Checked before the download of the layers, which are large.
        Run::of(&config, &shown)?;
        let mut seen = std::collections::HashSet::new();
        let layers: Vec<_> =
            manifest.layers().iter().filter(|layer| seen.insert(layer.digest().clone())).cloned().collect();
        futures_util::stream::iter(layers)
            .map(|layer| {
                let store = Arc::clone(self);
                let sources = Arc::clone(&sources);
                let meter = Arc::clone(&meter);
                let shown = &shown;
                async move { store.blob(work, shown, &sources, &layer, &meter).await }
            })
            .buffer_unordered(LAYERS_AT_ONCE_MAX)
            .try_collect::<()>()
            .await?;
        self.keep(work, name, &bytes, &manifest, &config, state).await
    }

    /// Resolves the name to the manifest for this machine.
    async fn resolve(&self, work: &Work, name: &Name, sources: &[Source]) -> Result<(Vec<u8>, Box<ImageManifest>)> {
        let image = format!("`{name}`");
        let mut bytes = self.document(work, name, sources, name.version(), name.digest()).await?;
        let host = Platform::host();
        for _ in 0..INDEXES_MAX {
            let index = match Document::parse(&bytes, &image)? {
                Document::Manifest(manifest) => return Ok((bytes, manifest)),
                Document::Index(index) => index,
            };
            let Some(chosen) = host.choose(index.manifests()) else {
                return Err(Error::Invalid(format!(
                    "{image} is not available for {host}, the platform of this server; available: {}",
                    offered(index.manifests())
                )));
            };
            let digest = chosen.digest().to_string();
            if !is_digest(&digest) {
                return Err(Error::Invalid(format!("{image} cannot be used: the digest of a manifest is not sha256")));
            }
            bytes = match work.has(&digest, chosen.size()) {
                true => self.layout.read_blob(&digest, DOCUMENT_BYTES_MAX).map_err(disk::failing("read a manifest"))?,
                false => self.document(work, name, sources, &digest, Some(&digest)).await?,
            };
        }
        match Document::parse(&bytes, &image)? {
            Document::Manifest(manifest) => Ok((bytes, manifest)),
            Document::Index(_) => {
                Err(Error::Invalid(format!("{image} cannot be used: it is nested in more than {INDEXES_MAX} indexes")))
            }
        }
    }

    /// Returns the meter for a download; fails if the image is too large or there is no room for
    /// it.
    fn measure(
        &self,
        work: &Work,
        manifest: &ImageManifest,
        image: &str,
        state: watch::Sender<State>,
    ) -> Result<Meter> {
        let mut seen = std::collections::HashSet::new();
        let blobs = manifest.layers().iter().chain([manifest.config()]);
        let blobs: Vec<_> = blobs.filter(|blob| seen.insert(blob.digest().as_ref())).collect();
        let total = blobs.iter().fold(0u64, |sum, blob| sum.saturating_add(blob.size()));
        if total > self.config.image_bytes_max {
            return Err(Error::TooLarge(format!(
                "{image} has {total} bytes, more than the limit for an image ({}); raise `images.max_image_mb` to \
                 accept it",
                self.config.image_bytes_max
            )));
        }
        let missing = blobs.iter().filter(|blob| !work.has(blob.digest().as_ref(), blob.size()));
        let needed = missing.fold(0u64, |sum, blob| sum.saturating_add(blob.size()));
        if needed == 0 {
            return Ok(Meter::new(total, state));
        }
        self.room()?;
        let free = disk::free(&self.config.dir)?.bytes;
        let stay = self.config.reserve.bytes;
        if needed.saturating_add(stay) > free {
            return Err(Error::Full(format!(
                "the disk is too full for {image}: it needs {needed} bytes, {free} are free, and images must leave \
                 {stay} free; remove images (`tidebox image prune`) or free disk space"
            )));
        }
        Ok(Meter::new(total, state))
    }

    /// Unpacks an image whose blobs are in the layout, and gives it its name.
    pub(super) async fn keep(
        self: &Arc<Self>,
        work: &Arc<Work>,
        name: &Name,
        bytes: &[u8],
        manifest: &ImageManifest,
        config: &ImageConfiguration,
        state: &watch::Sender<State>,
    ) -> Result<(Image, ImageGuard)> {
        let written = work.put_blob(media_type(manifest), bytes).map_err(disk::failing("write an image's manifest"))?;
        let digest = written.digest().to_string();
        let mut named = descriptor(media_type(manifest), written.size(), &digest)
            .map_err(disk::failing("write an image's manifest"))?;
        named.set_platform(Platform::of(config).for_index());
        let layers = self.layers(manifest, config)?;
        state.send_replace(State::Going(Progress::Unpacking { bytes: 0 }));
        let held = self.unpack(work, &digest, layers, state.clone()).await?;
        let key = name.to_string();
        self.blocking("name an image", move |store| {
            store.layout.set_ref(&key, &named).map_err(disk::failing("name an image"))?;
            store.catalog.touch(held.digest());
            let mut image = store.catalog.image(held.digest())?;
            // The handle here belongs to no box.
            image.boxes = image.boxes.saturating_sub(1);
            Ok((image, held))
        })
        .await
    }

    /// Returns the layers of an image in the store, for unpacking.
    fn layers(&self, manifest: &ImageManifest, config: &ImageConfiguration) -> Result<Vec<Layer>> {
        let pairs = manifest.layers().iter().zip(config.rootfs().diff_ids());
        pairs
            .map(|(layer, diff_id)| {
                Ok(Layer {
                    path: self.layout.blob_path(layer.digest().as_ref()),
                    compression: compression(layer).map_err(Error::Invalid)?,
                    diff_id: diff_id.clone(),
                })
            })
            .collect()
    }

    /// Unpacks an image, unless that is done already, and holds it.
    pub(super) async fn unpack(
        self: &Arc<Self>,
        work: &Arc<Work>,
        digest: &str,
        layers: Vec<Layer>,
        state: watch::Sender<State>,
    ) -> Result<ImageGuard> {
        let turn = self.turn(digest);
        let _turn = work.unless_stopped(turn.lock()).await?;
        loop {
            // A removal of this image may be running.
            self.removed(digest).await;
            let bounds = Bounds {
                bytes_max: self.config.image_bytes_max,
                entries_max: Bounds::ENTRIES_MAX,
                reserve: self.config.reserve,
            };
            let stop = work.stop().clone();
            let digest = digest.to_owned();
            let layers = layers.clone();
            let state = state.clone();
            let held = self
                .long_work("unpack an image", move |store| {
                    let written = AtomicU64::new(0);
                    store.trees.unpack(&digest, &layers, &bounds, &stop, &|bytes| {
                        let bytes = written.fetch_max(bytes, Ordering::Relaxed).max(bytes);
                        state.send_replace(State::Going(Progress::Unpacking { bytes }));
                    })?;
                    Ok(store.catalog.hold(&digest))
                })
                .await?;
            if let Some(held) = held {
                return Ok(held);
            }
        }
    }
}

fn stopping() -> Error {
    Error::Unavailable(
        "this server is shutting down; after its restart, the next request for the image resumes the pull".to_owned(),
    )
}
