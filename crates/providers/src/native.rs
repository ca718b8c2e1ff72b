//! Boxes made directly with kernel features: namespaces, overlays, control groups, a system call
//! filter, and user and group ids that own nothing on the host.
//!
//! Nothing has to be installed. The server starts a launcher (a mode of the embedded agent) for
//! each box, dials the agent over a unix socket in the box's folder, and recovers all of its
//! state from that folder after a restart. A probe box shows what the host forbids;
//! [`Provider::health`] and [`Provider::facts`] report it.

mod builder;
mod cpu_share;
mod disk;
mod host;
mod image;
mod prepared_dirs;
mod record;
mod slots;

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use domain::{SandboxId, StoreId};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::images::Images;
use crate::local::agent_file::AgentFile;
use crate::local::boxes::{Boxes, Entry};
use crate::local::cgroup::Cgroups;
use crate::local::host_rootfs::HostRootfs;
use crate::local::ids::IdPool;
use crate::local::kernel::kernel_usage;
use crate::local::removals::Removals;
use crate::local::usage::usage;
use crate::{
    BoxDisk, DiskUsage, Error, Facts, Found, Guest, Health, ImageSource, KernelShare, Provider, Result, Slots, Spec,
    Started,
};

use builder::{BoxBuilder, BoxPlan, Kind};
use host::{Host, probe_id};
use image::Image;
use prepared_dirs::PreparedDirs;
use record::{BoxFolder, Folders, folders_in};

/// Name of this provider.
pub const NAME: &str = "native";
/// Name of the image that shows the host's own `/usr`.
pub(crate) const HOST: &str = "host";
/// Time for which a successful probe is trusted.
const PROBE_AGE_MAX: Duration = Duration::from_secs(60);
/// Wait for a new probe in [`Provider::health`], which must answer within a second.
const PROBE_WAIT: Duration = Duration::from_millis(900);

/// Configuration of the provider.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// Parent of the folder `native`, which holds everything that the provider keeps on disk.
    pub data_dir: PathBuf,
    /// Store that the boxes belong to.
    pub store_id: StoreId,
    /// Control group below which boxes get theirs, from the root of the hierarchy; `None` for the
    /// server's own.
    pub cgroup_parent: Option<String>,
    /// First id and count of the host's ids that boxes may have, 65,536 each; `None` for a
    /// range far above those of people and services. Two servers on one host should have
    /// different ranges.
    pub subids: Option<(u32, u32)>,
    /// Source of images; `None` leaves `host` only.
    pub images: Option<Images>,
}

/// Provider of boxes made on this host. Clones share one state.
#[derive(Debug, Clone)]
pub struct Native {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    maker: BoxBuilder,
    images: Option<Images>,
    boxes: Boxes,
    slots: Boxes,
    host: RwLock<(Host, Instant)>,
    /// Background tasks, aborted when the provider is dropped.
    _background: JoinSet<()>,
}

impl Native {
    /// Sets the provider up: makes its folders, finds the boxes that an earlier server left, and
    /// makes a box to probe the host. A failed probe is no error; [`Provider::health`] reports
    /// it. Takes some milliseconds, and must be called within a runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ids that cannot hold a box, [`Error::Failed`] if
    /// the data folder cannot be written.
    pub async fn open(config: NativeConfig) -> Result<Native> {
        let failed = |error: std::io::Error| Error::failed("open the data folder", error);
        let ids = IdPool::new(config.subids, &config.store_id)?;
        let folders = Folders::make(&config.data_dir.join("native")).map_err(failed)?;
        let skeleton = HostRootfs::make(&folders.base).map_err(failed)?;
        let removals = Removals::default();
        let stock = PreparedDirs::new(folders.stock.clone(), skeleton.overlays(), removals.tasks());
        let maker = BoxBuilder {
            agent: AgentFile::sealed()?,
            cgroups: Cgroups::open(config.cgroup_parent.as_deref(), &config.store_id),
            tasks: TaskTracker::new(),
            removals,
            stock,
            folders,
            skeleton,
            ids,
        };
        let (boxes, slots) = (Boxes::default(), Boxes::default());
        let mut skeletons = Vec::new();
        for (id, folder) in folders_in(&maker.folders.boxes).map_err(failed)? {
            let in_it = folder.slots().map_err(failed)?.into_iter().map(|(id, folder)| (&slots, id, folder));
            for (all, id, folder) in in_it.chain([(&boxes, id, folder)]) {
                let Some(record) = folder.read() else { continue };
                record.id_base.into_iter().for_each(|base| maker.ids.mark(base));
                skeletons.push(record.skeleton);
                if let Some(digest) = record.image {
                    all.entry(&id).hold(image::held_again(config.images.as_ref(), &id, &digest));
                }
            }
        }
        maker.skeleton.remove_others(&maker.folders.base, &skeletons).map_err(failed)?;
        maker.empty_trash().map_err(failed)?;
        maker.stock.refill();
        let host = RwLock::new((Host::default(), Instant::now()));
        let mut background = JoinSet::new();
        background.spawn(cpu_share::watch(maker.cgroups.clone()));
        let inner = Inner { maker, images: config.images, boxes, slots, host, _background: background };
        inner.probe().await;
        Ok(Native { inner: Arc::new(inner) })
    }

    async fn make(&self, id: &SandboxId, spec: &Spec, kind: Kind) -> Result<Started> {
        self.check(spec)?;
        let (inner, id, spec) = (Arc::clone(&self.inner), id.clone(), spec.clone());
        // Before the lock on the box: a pull may take minutes.
        let image = if inner.maker.folders.of(&id).exists() { None } else { inner.take_image(&spec).await? };
        // Taken here and not in the task: if the caller goes away before it has the lock, the
        // start must not run after a cleanup that came in between.
        let (entry, change) = inner.boxes.change(&id).await;
        let work = async move {
            let _change = change;
            inner.start(&id, &spec, kind, image, &entry).await
        };
        self.tracked(work, "make a box").await
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
    async fn clear(&self, entry: &Entry, folder: &BoxFolder) -> Result<()> {
        if !folder.exists() {
            return Ok(());
        }
        let process = entry.process(folder.pid())?;
        self.maker.remove(folder, process.as_deref()).await
    }

    /// Makes a box. The caller holds the lock on `entry`.
    async fn start(
        &self,
        id: &SandboxId,
        spec: &Spec,
        kind: Kind,
        image: Option<Image>,
        entry: &Entry,
    ) -> Result<Started> {
        let (host, _) = self.host();
        let Some(can) = host.can else { return Err(Error::Unavailable(host.error.unwrap_or_default())) };
        let folder = self.maker.folders.of(id);
        if folder.exists() {
            if self.guest(entry, &folder).await.is_ok() {
                return Ok(Started { phases: Vec::new() });
            }
            self.clear(entry, &folder).await?;
        }
        let image = if image.is_some() { image } else { self.take_image(spec).await? };
        let what = self.maker.a_box(id, &spec.resources, spec.lifetime, can);
        match self.maker.make(&BoxPlan { kind, image: image.as_ref(), ..what }).await {
            Ok(made) => {
                let took = image.as_ref().map(Image::phase);
                entry.hold(image.map(|image| image.held));
                let process = Arc::new(made.process);
                entry.set_process(Arc::clone(&process));
                *entry.guest.lock().await = Some(Arc::new(made.guest));
                // Reaps the process when it ends.
                self.maker.tasks.spawn(async move { process.ended().await });
                Ok(Started { phases: took.into_iter().chain(made.phases).collect() })
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
        let folder = self.maker.folders.of(id);
        let slots = folder.slots().unwrap_or_default();
        self.clear(&entry, &folder).await?;
        self.boxes.forget(id);
        slots.iter().for_each(|(slot, _)| self.slots.forget(slot));
        Ok(())
    }

    /// Returns the kept connection to the agent, or opens a new one.
    async fn guest(&self, entry: &Entry, folder: &BoxFolder) -> Result<Arc<dyn Guest>> {
        entry.guest(folder.pid(), self.maker.dial(folder)).await
    }

    fn is_alive(&self, id: &SandboxId, folder: &BoxFolder) -> bool {
        self.boxes.entry(id).is_alive(folder.pid())
    }

    /// Measures the disk usage of a box or a slot.
    async fn disk_usage(&self, folder: BoxFolder) -> Option<DiskUsage> {
        let writes_there = self.host().0.can.is_some_and(|can| can.disk_upper);
        let measure = move || {
            // With an image file, deleted files that are still open are counted as part of it.
            let first = folder.pid().filter(|_| writes_there && !folder.image().exists());
            usage(folder.path(), first.map(|(pid, _)| pid)).ok()
        };
        tokio::task::spawn_blocking(measure).await.ok()?
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.maker.cgroups.tidy();
    }
}

#[async_trait]
impl Provider for Native {
    fn name(&self) -> &str {
        NAME
    }

    fn facts(&self) -> Facts {
        self.inner.host().0.facts(&self.inner.maker)
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
            Err(_) => {
                Health { error: Some("Making a box takes longer than a second: the host is overloaded.".to_owned()) }
            }
        }
    }

    fn default_image(&self) -> &str {
        HOST
    }

    fn images(&self) -> Option<&dyn ImageSource> {
        self.inner.images.as_ref().map(|images| images as &dyn ImageSource)
    }

    fn check(&self, spec: &Spec) -> Result<()> {
        image::check(self.inner.images.as_ref(), spec)?;
        let images = self.inner.host().0.can.is_some_and(|can| can.images);
        if !images && spec.resources.disk_mb > spec.resources.memory_mb {
            return Err(Error::NotSupported(
                "the provider native holds disk_mb in the memory of the box on this host, so it cannot be above memory_mb".to_owned(),
            ));
        }
        Ok(())
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        self.make(id, spec, Kind::Box).await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        self.tracked(async move { inner.stop(&id).await }, "remove a box").await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        let inner = Arc::clone(&self.inner);
        let list = move || -> std::io::Result<Vec<Found>> {
            let found = folders_in(&inner.maker.folders.boxes)?.into_iter().filter(|(id, _)| *id != probe_id());
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

    /// Returns `None` without root: a box then has one user only.
    fn slots(&self) -> Option<&dyn Slots> {
        self.inner.host().0.can.is_none_or(|can| can.privileged).then_some(self)
    }

    fn disk(&self) -> Option<BoxDisk> {
        let holds_bounded = self.inner.host().0.can.is_none_or(|can| can.images);
        Some(BoxDisk { dir: self.inner.maker.folders.boxes.clone(), holds_bounded })
    }

    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        self.inner.disk_usage(self.inner.maker.folders.of(id)).await
    }

    async fn kernel_usage(&self, id: &SandboxId, share: KernelShare) -> Option<u64> {
        kernel_usage(self.inner.maker.folders.of(id).pid()?.0, share).await
    }
}
