//! Boxes made with the program `proot`, for hosts that allow nothing else: no root,
//! no user namespaces, no container engine.
//!
//! `PRoot` traces every process of a box and rewrites the paths of its system calls. Cooperating
//! programs then see another root and another user. It does not isolate programs that evade it:
//! see [`Provider::facts`].
//!
//! With a server that is root, each box has an id of its own on the host, and the host's file
//! permissions isolate it. Elsewhere boxes run as the server's user.

mod builder;
mod copy;
mod host;
mod tracer;

use std::ffi::OsString;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use domain::{SandboxId, StoreId};
use tokio::time::Instant;

use crate::images::{ImageGuard, Images};
use crate::local::boxes::{Boxes, Entry};
use crate::local::folder::{Folder, Folders};
use crate::local::ids::{IDS_PER_BOX, IdPool};
use crate::local::kernel::kernel_usage;
use crate::local::usage::usage;
use crate::{
    BoxDisk, DiskUsage, Error, Facts, Found, Guest, Health, ImageSource, KernelShare, Provider, Result, Spec, Started,
};

use builder::{BoxBuilder, BoxPlan};
use host::{Host, OPEN_API, find, probe_id};

/// Name of this provider.
pub const NAME: &str = "proot";
/// Name of the image that shows the host's own programs.
pub(crate) const HOST: &str = "host";
/// Time for which a successful probe is trusted.
const PROBE_AGE_MAX: Duration = Duration::from_secs(60);
/// Wait for a new probe in [`Provider::health`], which must answer within a second.
const PROBE_WAIT: Duration = Duration::from_millis(900);
/// Start of the default range of ids, above those that `native` gives to its boxes.
const IDS_FIRST: u32 = 0x6000_0000;
const BOXES_MAX: u32 = 8192;

/// Configuration of the provider.
#[derive(Debug, Clone)]
pub struct ProotConfig {
    /// Program `proot`: a path, or a name to look for in `PATH`.
    pub binary: PathBuf,
    /// Data folder of the server. The boxes lie in its folder `proot`. If the server is root,
    /// they lie in a folder beside it with `-proot` at the end of its name, since the boxes'
    /// users may not enter the data folder.
    pub data_dir: PathBuf,
    /// Store that the boxes belong to.
    pub store_id: StoreId,
    /// Source of images other than `host`; `None` leaves `host` only.
    pub images: Option<Images>,
    /// First id and count of the host's ids that boxes may have if the server is root, 65,536 for
    /// each although it uses one; `None` for a range far above those of people, services and the
    /// provider `native`.
    pub subids: Option<(u32, u32)>,
    /// True where the server's API asks for no key: boxes, on the host's network, can then use
    /// it. [`Provider::facts`] reports that.
    pub api_is_open: bool,
}

/// Provider of boxes made with `proot`. Clones share one state.
#[derive(Debug, Clone)]
pub struct Proot {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    maker: BoxBuilder,
    images: Option<Images>,
    api_is_open: bool,
    boxes: Boxes,
    host: RwLock<(Host, Instant)>,
}

impl Proot {
    /// Sets the provider up: makes its folders, finds the boxes that an earlier server left, and
    /// makes a box to probe the host. A failed probe is no error; [`Provider::health`] reports
    /// it. Takes some tens of milliseconds, and must be called within a runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ids that cannot hold a box and for a data folder that
    /// boxes cannot reach, [`Error::Failed`] if it cannot be written.
    pub async fn open(config: ProotConfig) -> Result<Proot> {
        let failed = |error: std::io::Error| Error::failed("open the data folder", error);
        let is_root = rustix::process::geteuid().is_root();
        let default_ids = (IDS_FIRST, BOXES_MAX * IDS_PER_BOX);
        let ids = is_root.then(|| IdPool::new(config.subids.or(Some(default_ids)), &config.store_id)).transpose()?;
        let (base, mode) =
            if is_root { (beside(&config.data_dir), 0o711) } else { (config.data_dir.join("proot"), 0o700) };
        let folders = Folders::make(&base, mode).map_err(failed)?;
        check_base(&folders.base, is_root)?;
        let proot = find(&config.binary).unwrap_or(config.binary);
        let maker = BoxBuilder::new(folders, proot, ids)?;
        for (_, folder) in maker.folders.all().map_err(failed)? {
            if let (Some(ids), Some(id)) = (&maker.ids, folder.read().and_then(|record| record.id)) {
                ids.mark(id);
            }
        }
        maker.empty_trash().map_err(failed)?;
        let host = RwLock::new((Host::default(), Instant::now()));
        let inner =
            Inner { maker, images: config.images, api_is_open: config.api_is_open, boxes: Boxes::default(), host };
        inner.probe().await;
        Ok(Proot { inner: Arc::new(inner) })
    }

    /// Runs `work` to its end even if the caller goes away.
    async fn tracked<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
        action: &'static str,
    ) -> Result<T> {
        self.inner.maker.tasks.spawn(work).await.unwrap_or_else(|error| Err(Error::failed(action, error)))
    }
}

/// Returns the folder beside `dir` that other users may pass through.
fn beside(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().map_or_else(|| OsString::from("tidebox"), ToOwned::to_owned);
    name.push("-proot");
    dir.with_file_name(name)
}

/// Checks whether boxes can live in this folder.
fn check_base(base: &Path, is_root: bool) -> Result<()> {
    let shown = base.display();
    if base.to_str().is_none_or(|text| text.contains(':')) {
        return Err(Error::Invalid(format!(
            "PRoot cannot work in {shown}: choose a data_dir whose path is UTF-8 and has no colon"
        )));
    }
    let closed = |dir: &&Path| dir.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 == 0);
    match base.ancestors().find(closed).filter(|_| is_root) {
        Some(closed) => Err(Error::Invalid(format!(
            "the users of PRoot's boxes cannot reach {shown}, since {} is closed to others: open it (chmod o+x) or choose another data_dir",
            closed.display()
        ))),
        None => Ok(()),
    }
}

impl Inner {
    fn host(&self) -> (Host, Instant) {
        self.host.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Probes the host again, and keeps the result.
    async fn probe(&self) {
        let id = probe_id();
        let (entry, _change) = self.boxes.change(&id).await;
        let folder = self.maker.folders.of(&id);
        let host = match self.clear(&entry, &folder).await {
            Ok(()) => Host::probe(&self.maker).await,
            Err(error) => {
                Host { error: Some(format!("An earlier probe cannot be removed: {error}.")), ..Host::default() }
            }
        };
        *self.host.write().unwrap_or_else(PoisonError::into_inner) = (host, Instant::now());
        self.boxes.forget(&id);
    }

    /// Ends and removes a box, if there is one.
    async fn clear(&self, entry: &Entry, folder: &Folder) -> Result<()> {
        if !folder.exists() {
            return Ok(());
        }
        let process = entry.process(folder.pid())?;
        self.maker.remove(folder, process.as_deref()).await
    }

    /// Makes a box. The caller holds the lock on `entry`.
    async fn start(&self, id: &SandboxId, spec: &Spec, image: Option<ImageGuard>, entry: &Entry) -> Result<Started> {
        let (host, _) = self.host();
        if let Some(error) = host.error {
            return Err(Error::Unavailable(error));
        }
        let folder = self.maker.folders.of(id);
        if folder.exists() {
            if self.guest(entry, &folder).await.is_ok() {
                return Ok(Started { phases: Vec::new() });
            }
            self.clear(entry, &folder).await?;
        }
        let usual = self.maker.a_box(id, &spec.resources, spec.lifetime);
        match self.maker.make(&BoxPlan { image, entrypoint: spec.entrypoint, slowly: host.slowly, ..usual }).await {
            Ok(made) => {
                entry.settle(made.process, made.guest, &self.maker.tasks).await;
                Ok(Started { phases: made.phases })
            }
            Err(error) => {
                if let Err(remains) = self.clear(entry, &folder).await {
                    tracing::warn!(%id, error = %remains, "what is left of a box that could not be made cannot be removed");
                }
                self.boxes.forget(id);
                Err(error)
            }
        }
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let (entry, _change) = self.boxes.change(id).await;
        self.clear(&entry, &self.maker.folders.of(id)).await?;
        self.boxes.forget(id);
        Ok(())
    }

    /// Returns the kept connection to the agent, or opens a new one.
    async fn guest(&self, entry: &Entry, folder: &Folder) -> Result<Arc<dyn Guest>> {
        entry.guest(folder.pid(), self.maker.dial(folder)).await
    }

    fn is_alive(&self, id: &SandboxId, folder: &Folder) -> bool {
        self.boxes.entry(id).is_alive(folder.pid())
    }

    /// Returns the image of the box; `None` for the host's own programs.
    async fn image(&self, spec: &Spec) -> Result<Option<ImageGuard>> {
        match &self.images {
            _ if spec.image == HOST => Ok(None),
            Some(images) => {
                let held = images.take_for(&spec.image, spec.asker).await.map_err(Error::of_image)?;
                held.run().check(&spec.image, spec.entrypoint)?;
                Ok(Some(held))
            }
            None => Err(no_images(&spec.image)),
        }
    }
}

fn no_images(image: &str) -> Error {
    Error::Invalid(format!("the provider proot has only the image `{HOST}` here, not `{image}`"))
}

#[async_trait]
impl Provider for Proot {
    fn name(&self) -> &str {
        NAME
    }

    fn facts(&self) -> Facts {
        let mut facts = self.inner.host().0.facts(&self.inner.maker);
        if self.inner.api_is_open {
            facts.missing.insert(0, OPEN_API.to_owned());
        }
        facts
    }

    /// Waits until the folders of stopped boxes are deleted, which frees their ids.
    async fn idle(&self) {
        self.inner.maker.removals.idle().await;
    }

    async fn health(&self) -> Health {
        let (host, asked) = self.inner.host();
        if host.error.is_none() && asked.elapsed() < PROBE_AGE_MAX {
            return Health::default();
        }
        let inner = Arc::clone(&self.inner);
        let probe = self.inner.maker.tasks.spawn(async move { inner.probe().await });
        match tokio::time::timeout(PROBE_WAIT, probe).await {
            Ok(_) => Health { error: self.inner.host().0.error },
            // The probe goes on, and the next call has its result.
            Err(_) if host.error.is_none() => Health::default(),
            Err(_) => Health { error: host.error },
        }
    }

    fn default_image(&self) -> &str {
        HOST
    }

    fn images(&self) -> Option<&dyn ImageSource> {
        self.inner.images.as_ref().map(|images| images as &dyn ImageSource)
    }

    fn check(&self, spec: &Spec) -> Result<()> {
        if spec.image != HOST {
            return if self.inner.images.is_some() { Ok(()) } else { Err(no_images(&spec.image)) };
        }
        if spec.entrypoint {
            return Err(Error::Invalid(format!("the image `{HOST}` has no entry point to start")));
        }
        Ok(())
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        self.check(spec)?;
        let (inner, id, spec) = (Arc::clone(&self.inner), id.clone(), spec.clone());
        // Before the lock on the box: a pull may take minutes, and a stop must not wait for it. A
        // caller that goes away meanwhile has begun nothing.
        let image = inner.image(&spec).await?;
        let (entry, change) = inner.boxes.change(&id).await;
        let work = async move {
            let _change = change;
            inner.start(&id, &spec, image, &entry).await
        };
        self.tracked(work, "make a box").await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        self.tracked(async move { inner.stop(&id).await }, "remove a box").await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        let inner = Arc::clone(&self.inner);
        let list = move || -> std::io::Result<Vec<Found>> {
            let found = inner.maker.folders.all()?.into_iter().filter(|(id, _)| *id != probe_id());
            Ok(found.map(|(id, folder)| Found { alive: inner.is_alive(&id, &folder), id }).collect())
        };
        let listed = tokio::task::spawn_blocking(list).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        listed.map_err(|error| Error::failed("list the boxes", error))
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        let folder = self.inner.maker.folders.of(id);
        if !folder.exists() {
            return Err(Error::Gone);
        }
        self.inner.guest(&self.inner.boxes.entry(id), &folder).await
    }

    fn disk(&self) -> Option<BoxDisk> {
        Some(BoxDisk { dir: self.inner.maker.folders.boxes.clone(), holds_bounded: true })
    }

    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        let folder = self.inner.maker.folders.of(id);
        let measure = move || usage(folder.path(), folder.pid().map(|(pid, _)| pid)).ok();
        tokio::task::spawn_blocking(measure).await.ok()?
    }

    /// Measures a share of the kernel. Connections are not attributed: boxes use the host's
    /// network.
    async fn kernel_usage(&self, id: &SandboxId, share: KernelShare) -> Option<u64> {
        kernel_usage(self.inner.maker.folders.of(id).pid()?.0, share).await
    }
}
