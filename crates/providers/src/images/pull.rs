//! Pulls: one task for each name, however many wait for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use oci_spec::image::{ImageConfiguration, ImageManifest};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fetch::Meter;
use super::layout::descriptor;
use super::manifest::{DOCUMENT_BYTES_MAX, Document, compression, configuration, media_type};
use super::name::{Name, shown};
use super::platform::{Platform, offered};
use super::registry::Source;
use super::{Bounds, Held, Image, Layer, Progress, Run, Store, disk};
use crate::{Error, Result};

/// The most pulls at once.
pub(crate) const PULLS_MAX: usize = 64;

/// The most layers of one image that come in at once.
const LAYERS_AT_ONCE_MAX: usize = 3;

/// How long a pull may take, whoever waits for it.
pub(crate) const PULL_WAIT_MAX: Duration = Duration::from_secs(6 * 3600);

/// How far a pull is, for everybody who waits for it.
#[derive(Debug, Clone)]
pub(super) enum State {
    Going(Progress),
    /// Held, so that those who wait for it find it here.
    Done(Image, Held),
    Failed(Arc<Error>),
}

/// The pulls that are under way.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    running: Mutex<HashMap<String, watch::Receiver<State>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Pulls {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<State>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends them.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A pull that is under way, for as long as its task lives.
struct Running {
    store: Arc<Store>,
    name: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.pulls.lock().remove(&self.name);
    }
}

impl Store {
    /// Joins the pull of this name, or begins it.
    pub(super) fn begin(self: &Arc<Self>, name: &Name) -> Result<watch::Receiver<State>> {
        name.check_allowed(&self.config.allowed_registries)?;
        let key = name.to_string();
        let mut running = self.pulls.lock();
        if let Some(pull) = running.get(&key) {
            return Ok(pull.clone());
        }
        if self.pulls.stop.is_cancelled() {
            return Err(stopping());
        }
        if running.len() >= PULLS_MAX {
            return Err(Error::Unavailable(format!("{PULLS_MAX} images are being pulled; try again later")));
        }
        let (state, watched) = watch::channel(State::Going(Progress::Resolving));
        running.insert(key.clone(), watched.clone());
        drop(running);
        let (store, name) = (Arc::clone(self), name.clone());
        let under_way = Running { store: Arc::clone(self), name: key };
        self.pulls.tasks.spawn(async move {
            let end = tokio::select! {
                biased;
                () = store.pulls.stop.cancelled() => Err(stopping()),
                end = tokio::time::timeout(PULL_WAIT_MAX, store.pull(&name, &state)) => {
                    end.unwrap_or_else(|_| Err(Error::Unavailable(format!("the pull of `{name}` took too long"))))
                }
            };
            // What there was no room for must not take the room of others.
            if matches!(end, Err(Error::Full(_))) {
                store.tidy().await;
            }
            // First this, so that whoever sees the end and asks again begins anew.
            drop(under_way);
            state.send_replace(match end {
                Ok((image, held)) => {
                    tracing::info!(name = %name, digest = image.digest, "an image was pulled");
                    State::Done(image, held)
                }
                Err(error) => {
                    tracing::warn!(name = %name, error = %crate::Chain(&error), "an image was not pulled");
                    State::Failed(Arc::new(error))
                }
            });
            store.evict().await;
        });
        Ok(watched)
    }

    /// Waits for a pull, but not for ever.
    pub(super) async fn wait(&self, name: &Name, mut pull: watch::Receiver<State>) -> Result<Held> {
        let wait = async {
            loop {
                match &*pull.borrow_and_update() {
                    State::Going(_) => {}
                    State::Done(_, held) => return Ok(held.clone()),
                    State::Failed(error) => return Err(again(error)),
                }
                pull.changed().await.map_err(|_| broke_off())?;
            }
        };
        match tokio::time::timeout(self.config.pull_timeout, wait).await {
            Ok(end) => end,
            Err(_) => {
                let far = match &*pull.borrow() {
                    State::Going(Progress::Downloading { bytes, bytes_total }) => {
                        format!(" ({} of {} MB are here)", bytes / 1_000_000, bytes_total.div_ceil(1_000_000))
                    }
                    State::Going(Progress::Unpacking { .. }) => " (it is being unpacked)".to_owned(),
                    State::Going(_) | State::Done(..) | State::Failed(_) => String::new(),
                };
                Err(Error::Unavailable(format!(
                    "`{name}` is still being pulled{far}; the pull goes on, try again later"
                )))
            }
        }
    }

    async fn pull(self: &Arc<Self>, name: &Name, state: &watch::Sender<State>) -> Result<(Image, Held)> {
        let _work = self.layout.work();
        let sources: Arc<[Source]> = self.registries.sources(name)?.into();
        let (bytes, manifest) = self.resolve(name, &sources).await?;
        let shown = format!("`{name}`");
        let meter = Arc::new(self.measure(&manifest, &shown, state.clone())?);
        self.blob(&sources, manifest.config(), &meter).await?;
        let config = self
            .layout
            .read_blob(manifest.config().digest().as_ref(), DOCUMENT_BYTES_MAX)
            .map_err(|error| disk("read an image's configuration", error))?;
        let config = configuration(&config, &manifest, &shown)?;
        let (host, platform) = (Platform::host(), Platform::of(&config));
        if !host.runs(&platform) {
            return Err(Error::Invalid(format!(
                "{shown} is made for {}, and this server is {host}; name an image for it",
                super::name::shown(&platform.to_string())
            )));
        }
        // Before the layers, which are large.
        Run::of(&config, &shown)?;
        let mut seen = std::collections::HashSet::new();
        let layers: Vec<_> =
            manifest.layers().iter().filter(|layer| seen.insert(layer.digest().clone())).cloned().collect();
        futures_util::stream::iter(layers)
            .map(|layer| {
                let (store, sources, meter) = (Arc::clone(self), Arc::clone(&sources), Arc::clone(&meter));
                async move { store.blob(&sources, &layer, &meter).await }
            })
            .buffer_unordered(LAYERS_AT_ONCE_MAX)
            .try_collect::<()>()
            .await?;
        self.keep(name, &bytes, &manifest, &config, state).await
    }

    /// Asks what the name is, down to the manifest for this machine.
    async fn resolve(&self, name: &Name, sources: &[Source]) -> Result<(Vec<u8>, Box<ImageManifest>)> {
        let image = format!("`{name}`");
        let bytes = self.document(name, sources, name.version(), name.digest()).await?;
        let index = match Document::parse(&bytes, &image)? {
            Document::Manifest(manifest) => return Ok((bytes, manifest)),
            Document::Index(index) => index,
        };
        let host = Platform::host();
        let Some(chosen) = host.choose(index.manifests()) else {
            return Err(Error::Invalid(format!(
                "{image} is not made for {host}, what this server is; there is {}",
                offered(index.manifests())
            )));
        };
        let digest = chosen.digest().to_string();
        if !super::layout::is_digest(&digest) {
            return Err(Error::Invalid(format!("{image} cannot be used: the digest of a manifest is no sha256")));
        }
        let bytes = match self.layout.has(&digest, chosen.size()) {
            true => {
                self.layout.read_blob(&digest, DOCUMENT_BYTES_MAX).map_err(|error| disk("read a manifest", error))?
            }
            false => self.document(name, sources, &digest, Some(&digest)).await?,
        };
        match Document::parse(&bytes, &image)? {
            Document::Manifest(manifest) => Ok((bytes, manifest)),
            Document::Index(_) => Err(Error::Invalid(format!("{image} cannot be used: its index leads to an index"))),
        }
    }

    /// What is to come, if there is room for it.
    fn measure(&self, manifest: &ImageManifest, image: &str, state: watch::Sender<State>) -> Result<Meter> {
        let mut seen = std::collections::HashSet::new();
        let blobs = manifest.layers().iter().chain([manifest.config()]);
        let blobs: Vec<_> = blobs.filter(|blob| seen.insert(blob.digest().as_ref())).collect();
        let total = blobs.iter().fold(0u64, |sum, blob| sum.saturating_add(blob.size()));
        if total > self.config.image_bytes_max {
            return Err(Error::Invalid(format!(
                "{image} has {total} bytes, more than an image may have here ({})",
                self.config.image_bytes_max
            )));
        }
        let missing = blobs.iter().filter(|blob| !self.layout.has(blob.digest().as_ref(), blob.size()));
        let needed = missing.fold(0u64, |sum, blob| sum.saturating_add(blob.size()));
        let free = rustix::fs::statvfs(&self.config.dir)
            .map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
            .map_err(|error| disk("see how much room there is for images", error.into()))?;
        if needed.saturating_add(self.config.reserve_bytes) > free {
            return Err(Error::Full(format!(
                "there is no room for {image}: it needs {needed} bytes besides {} that stay free, and the disk has {free}; \
                 remove images (`tidebox image prune`) or make room",
                self.config.reserve_bytes
            )));
        }
        Ok(Meter::new(total, state))
    }

    /// Unpacks an image that is here, and gives it its name.
    pub(super) async fn keep(
        self: &Arc<Self>,
        name: &Name,
        bytes: &[u8],
        manifest: &ImageManifest,
        config: &ImageConfiguration,
        state: &watch::Sender<State>,
    ) -> Result<(Image, Held)> {
        let fails = |error| disk("write an image's manifest", error);
        let written = self.layout.put_blob(media_type(manifest), bytes).map_err(fails)?;
        let digest = written.digest().to_string();
        let mut named = descriptor(media_type(manifest), written.size(), &digest).map_err(fails)?;
        named.set_platform(Platform::of(config).for_index());
        let layers = self.layers(manifest, config)?;
        state.send_replace(State::Going(Progress::Unpacking { bytes: 0 }));
        let held = self.unpack(&digest, layers, state.clone()).await?;
        let key = name.to_string();
        self.blocking("name an image", move |store| {
            store.layout.set_ref(&key, &named).map_err(|error| disk("name an image", error))?;
            store.touch(held.digest());
            let mut image = store.image(held.digest())?;
            // What holds it here is no box.
            image.boxes = image.boxes.saturating_sub(1);
            Ok((image, held))
        })
        .await
    }

    /// The layers of an image that is here, as they are unpacked.
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

    /// Unpacks what is not unpacked yet, and holds it.
    pub(super) async fn unpack(
        self: &Arc<Self>,
        digest: &str,
        layers: Vec<Layer>,
        state: watch::Sender<State>,
    ) -> Result<Held> {
        let turn = self.turn(digest);
        let _turn = turn.lock().await;
        loop {
            // Somebody may be removing just this image.
            self.removed(digest).await;
            let bounds = Bounds { bytes_max: self.config.image_bytes_max, entries_max: Bounds::ENTRIES_MAX };
            let (digest, layers, state) = (digest.to_owned(), layers.clone(), state.clone());
            let held = self
                .blocking("unpack an image", move |store| {
                    let written = AtomicU64::new(0);
                    let progress = |bytes: u64| {
                        let bytes = written.fetch_max(bytes, Ordering::Relaxed).max(bytes);
                        state.send_replace(State::Going(Progress::Unpacking { bytes }));
                    };
                    store.trees.unpack(&digest, &layers, &bounds, &progress)?;
                    Ok(store.hold(&digest))
                })
                .await?;
            if let Some(held) = held {
                return Ok(held);
            }
        }
    }
}

/// The pull's progress as a stream that ends with it.
pub(super) fn watching(pull: watch::Receiver<State>) -> BoxStream<'static, Result<Progress>> {
    let items = futures_util::stream::unfold(Some((pull, true)), |watching| async move {
        let (mut pull, first) = watching?;
        if !first && pull.changed().await.is_err() {
            return Some((Err(broke_off()), None));
        }
        let state = pull.borrow_and_update().clone();
        match state {
            State::Going(progress) => Some((Ok(progress), Some((pull, false)))),
            State::Done(image, _) => Some((Ok(Progress::Done(image)), None)),
            State::Failed(error) => Some((Err(again(&error)), None)),
        }
    });
    items.boxed()
}

fn stopping() -> Error {
    Error::Unavailable(
        "this server is stopping; the pull goes on after its next start, when it is asked for".to_owned(),
    )
}

fn broke_off() -> Error {
    Error::failed("pull an image", "its task ended without a word")
}

/// A failure that many waited for, for one of them.
pub(super) fn again(error: &Arc<Error>) -> Error {
    match &**error {
        Error::Invalid(text) => Error::Invalid(text.clone()),
        Error::NotFound(text) => Error::NotFound(text.clone()),
        Error::Conflict(text) => Error::Conflict(text.clone()),
        Error::Gone => Error::Gone,
        Error::NotSupported(text) => Error::NotSupported(text.clone()),
        Error::NoSpace => Error::NoSpace,
        Error::Full(text) => Error::Full(text.clone()),
        Error::Exhausted(text) => Error::Exhausted(text.clone()),
        Error::Unavailable(text) => Error::Unavailable(text.clone()),
        Error::NotAsked(_) => Error::failed("pull an image", Arc::clone(error)),
        Error::Failed { action, .. } => Error::failed(action, Arc::clone(error)),
    }
}

/// What somebody asked for and the store does not have.
pub(super) fn not_here(name: &str) -> String {
    format!("{} is not on this server", shown(name))
}
