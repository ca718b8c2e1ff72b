//! Providers that make boxes on this host themselves.
//!
//! [`Local`] is the provider; a [`Backend`] is a way to make boxes: [`crate::native`],
//! [`crate::proot`], [`crate::firecracker`]. The server starts a launcher for each box, reaches the box's agent over a
//! socket in its folder, and recovers all of its state from that folder after a restart. A probe
//! box shows what the host forbids; [`Provider::health`] and [`Provider::facts`] report it.

pub(crate) mod abilities;
pub(crate) mod agent_file;
pub(crate) mod agent_socket;
pub(crate) mod backend;
pub(crate) mod boxes;
pub(crate) mod builder;
pub(crate) mod cgroup;
pub(crate) mod fault;
pub(crate) mod file_copy;
pub(crate) mod file_key;
pub(crate) mod folder;
pub(crate) mod fs_image;
pub(crate) mod host_privileges;
pub(crate) mod host_rootfs;
pub(crate) mod ids;
pub(crate) mod image;
pub(crate) mod kernel;
pub(crate) mod launcher;
pub(crate) mod parts;
mod pauses;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod record;
pub(crate) mod refill;
pub(crate) mod removals;
mod shared_files;
mod shipped;
mod slots;
pub(crate) mod snapshot_folder;
pub(crate) mod snapshots;
pub(crate) mod stats;
pub(crate) mod tree_copy;
pub(crate) mod usage;

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{SandboxId, SnapshotId};
use images::ImageGuard;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::snapshots::check_snapshot;
use crate::{
    BoxDisk, BoxStats, DiskUsage, Error, Facts, Found, Guest, Health, ImageSnapshots, ImageSource, KernelShare, Pauses,
    Provider, Result, Slots, Snapshots, Spec, Started,
};

use backend::{Backend, OwnFiles};
use boxes::{Boxes, Entry};
use fault::not_opened;
use folder::BoxFolder;
use image::Image;
use kernel::kernel_usage;
use plan::{BoxPlan, Kind};
use probe::{Probe, probe_id};
use usage::usage;

/// Time for which a successful probe is trusted.
const PROBE_AGE_MAX: Duration = Duration::from_secs(60);
/// Wait for a new probe in [`Provider::health`], which must answer within a second.
const PROBE_WAIT: Duration = Duration::from_millis(900);

/// Provider of boxes made on this host. Clones share one state.
#[derive(Debug)]
pub struct Local<B: Backend> {
    inner: Arc<Inner<B>>,
}

impl<B: Backend> Clone for Local<B> {
    fn clone(&self) -> Self {
        Local { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct Inner<B: Backend> {
    backend: B,
    boxes: Boxes,
    slots: Boxes,
    /// Holds that keep the images of snapshots on disk.
    snapshots: Mutex<HashMap<SnapshotId, ImageGuard>>,
    probed: RwLock<(Probe<B::Capabilities>, Instant)>,
}

impl<B: Backend> Local<B> {
    /// Finds the boxes that an earlier server left, and makes a box to probe the host. A failed
    /// probe is no error; [`Provider::health`] reports it. Must be called within a runtime.
    ///
    /// # Errors
    /// [`Error::Failed`] if the data folder cannot be read and written.
    pub(crate) async fn resume(backend: B) -> Result<Local<B>> {
        let boxes = Boxes::default();
        let slots = Boxes::default();
        let probed = RwLock::new((Probe::default(), Instant::now()));
        let inner = Inner { backend, boxes, slots, snapshots: Mutex::default(), probed };
        inner.find_boxes().and_then(|()| inner.find_snapshots()).map_err(not_opened)?;
        inner.probe().await;
        Ok(Local { inner: Arc::new(inner) })
    }

    async fn make(&self, id: &SandboxId, spec: &Spec, kind: Kind) -> Result<Started> {
        self.check(spec)?;
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let spec = spec.clone();
        // Before the lock on the box: a pull may take minutes, and a stop must not wait for it.
        let image = if inner.folder(&id).exists() { None } else { inner.take_image(&spec).await? };
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
        let tasks = &self.inner.backend.parts().tasks;
        tasks.spawn(work).await.unwrap_or_else(|error| Err(Error::failed(action, error)))
    }

    /// Runs `list` apart from the async threads.
    async fn listed(
        &self,
        list: impl FnOnce(&Inner<B>) -> std::io::Result<Vec<Found>> + Send + 'static,
        action: &'static str,
    ) -> Result<Vec<Found>> {
        let inner = Arc::clone(&self.inner);
        let listed = tokio::task::spawn_blocking(move || list(&inner)).await;
        let listed = listed.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        listed.map_err(|error| Error::failed(action, error))
    }
}

impl<B: Backend> Inner<B> {
    fn folder(&self, id: &SandboxId) -> BoxFolder {
        self.backend.parts().folders.of(id)
    }

    fn probed(&self) -> (Probe<B::Capabilities>, Instant) {
        self.probed.read().clone()
    }

    /// Returns what the host allows; `None` if no box can be made.
    fn can(&self) -> Option<B::Capabilities> {
        self.probed().0.can
    }

    /// Returns whether a box was written to disk, and has no process.
    fn is_suspended(&self, folder: &BoxFolder) -> bool {
        self.backend.suspender().is_some_and(|suspender| suspender.is_suspended(folder))
    }

    /// Marks what belongs to boxes of an earlier server as in use, and removes what belongs to
    /// none.
    fn find_boxes(&self) -> std::io::Result<()> {
        let parts = self.backend.parts();
        let mut host_rootfs = Vec::new();
        for (id, folder) in parts.folders.all()? {
            let slots = if self.backend.properties(None).holds_slots { folder.slots()? } else { Vec::new() };
            let slots = slots.into_iter().map(|(id, folder)| (&self.slots, id, folder));
            for (all, id, folder) in slots.chain([(&self.boxes, id, folder)]) {
                let Some(record) = folder.read() else { continue };
                if let (Some(ids), Some(base)) = (&parts.ids, record.id_base) {
                    ids.mark(base);
                }
                if B::COPIES_IMAGE {
                    continue;
                }
                host_rootfs.extend(record.host_rootfs);
                if let Some(digest) = record.image {
                    all.entry(&id).hold(image::held_again(parts.images.as_ref(), &id, &digest));
                }
            }
        }
        parts.host_rootfs.remove_others(&parts.folders.base, &host_rootfs)?;
        for entry in fs::read_dir(&parts.folders.trash)? {
            parts.removals.discard(entry?.path(), |_| {});
        }
        Ok(())
    }

    /// Probes the host again, and keeps the result.
    async fn probe(&self) {
        let id = probe_id();
        let (entry, _change) = self.boxes.change(&id).await;
        let probe = match self.clear(&entry, &self.folder(&id)).await {
            Ok(()) => self.backend.probe().await,
            Err(error) => {
                Probe { error: Some(format!("An earlier probe cannot be removed: {error}.")), ..Probe::default() }
            }
        };
        *self.probed.write() = (probe, Instant::now());
        self.boxes.forget(&id);
    }

    /// Returns the image that `spec` asks for; `None` for `host`.
    async fn take_image(&self, spec: &Spec) -> Result<Option<Image>> {
        if let Some(snapshot) = &spec.snapshot {
            return self.image_of_snapshot(spec, snapshot);
        }
        image::take(B::NAME, self.backend.parts().images.as_ref(), spec).await
    }

    /// Ends and removes a box, if there is one.
    async fn clear(&self, entry: &Entry, folder: &BoxFolder) -> Result<()> {
        if !folder.exists() {
            return Ok(());
        }
        let process = entry.process(folder.pid())?;
        builder::remove(&self.backend, folder, process.as_deref()).await
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
        let (probe, _) = self.probed();
        let Some(can) = probe.can else { return Err(Error::Unavailable(probe.error.unwrap_or_default())) };
        let folder = self.folder(id);
        if folder.exists() {
            if self.is_suspended(&folder) {
                self.wake(id, entry).await?;
            }
            // A paused agent would not answer.
            if let (Some(record), Some(pauser)) = (folder.read(), self.backend.pauser()) {
                let _ = pauser.resume(&folder, &record).await;
            }
            if self.guest(entry, &folder).await.is_ok() {
                return Ok(Started { phases: Vec::new() });
            }
            self.clear(entry, &folder).await?;
        }
        let image = if image.is_some() { image } else { self.take_image(spec).await? };
        let snapshot = spec.snapshot.as_ref().map(|id| self.backend.parts().folders.snapshot(id));
        let plan = BoxPlan { id, spec, folder, kind, can, image: image.as_ref(), snapshot };
        match builder::make(&self.backend, &plan).await {
            Ok(made) => {
                entry.hold(image.filter(|_| !B::COPIES_IMAGE).map(|image| image.held));
                entry.settle(made.process, made.guest, &self.backend.parts().tasks).await;
                Ok(Started { phases: made.phases })
            }
            Err(error) => {
                if let Err(remains) = self.clear(entry, &plan.folder).await {
                    tracing::warn!(%id, error = %remains, "cannot remove the remains of a box that could not be made");
                }
                self.boxes.forget(id);
                Err(error)
            }
        }
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let (entry, _change) = self.boxes.change(id).await;
        let folder = self.folder(id);
        let slots = folder.slots().unwrap_or_default();
        self.clear(&entry, &folder).await?;
        self.boxes.forget(id);
        slots.iter().for_each(|(slot, _)| self.slots.forget(slot));
        Ok(())
    }

    /// Lists the boxes on disk except the probe. Blocks.
    fn list_boxes(&self) -> std::io::Result<Vec<Found>> {
        let folders = self.backend.parts().folders.all()?.into_iter().filter(|(id, _)| *id != probe_id());
        Ok(folders.map(|(id, folder)| Found { alive: self.is_alive(&id, &folder), id }).collect())
    }

    /// Returns whether a box is suspended to disk or its first process runs.
    fn is_alive(&self, id: &SandboxId, folder: &BoxFolder) -> bool {
        self.is_suspended(folder) || self.boxes.entry(id).is_alive(folder.pid())
    }

    /// Returns the kept connection to the agent, or opens a new one.
    async fn guest(&self, entry: &Entry, folder: &BoxFolder) -> Result<Arc<dyn Guest>> {
        entry.guest(folder.pid(), self.backend.dial(folder)).await
    }

    /// Measures the disk usage of a box or a slot.
    async fn disk_usage(self: &Arc<Self>, folder: BoxFolder) -> Option<DiskUsage> {
        let OwnFiles { path, holds_deleted } = self.backend.own_files(&folder, self.can())?;
        let inner = Arc::clone(self);
        let measured = tokio::task::spawn_blocking(move || {
            let first = folder.pid().filter(|_| holds_deleted);
            let found = usage(&path, first.map(|(pid, _)| pid)).ok()?;
            inner.charge_shared(&folder, &path, found).ok()
        });
        measured.await.ok()?
    }
}

/// Measures the resources of boxes or slots, apart from the async threads.
async fn measured(folders: Vec<BoxFolder>) -> Result<Vec<BoxStats>> {
    let measured = tokio::task::spawn_blocking(move || stats::measure(&folders)).await;
    measured.map_err(|error| Error::failed("measure boxes", error))
}

#[async_trait]
impl<B: Backend> Provider for Local<B> {
    fn name(&self) -> &str {
        B::NAME
    }

    fn facts(&self) -> Facts {
        self.inner.backend.facts(&self.inner.probed().0)
    }

    /// Waits until the folders of stopped boxes are deleted, which frees their ids.
    async fn idle(&self) {
        self.inner.backend.parts().removals.idle().await;
    }

    async fn health(&self) -> Health {
        let (last, asked) = self.inner.probed();
        if last.error.is_none() && asked.elapsed() < PROBE_AGE_MAX {
            return Health::default();
        }
        let inner = Arc::clone(&self.inner);
        let probe = self.inner.backend.parts().tasks.spawn(async move { inner.probe().await });
        match tokio::time::timeout(PROBE_WAIT, probe).await {
            Ok(_) => Health { error: self.inner.probed().0.error },
            // The probe goes on, and the next call has its result. Until then the last one holds: a host
            // that is busy makes boxes, though slowly.
            Err(_) => Health { error: last.error },
        }
    }

    fn default_image(&self) -> &str {
        B::DEFAULT_IMAGE
    }

    fn images(&self) -> Option<&dyn ImageSource> {
        self.inner.backend.parts().images.as_ref().map(|images| images as &dyn ImageSource)
    }

    fn check(&self, spec: &Spec) -> Result<()> {
        check_snapshot(self, spec)?;
        image::check(B::NAME, B::DEFAULT_IMAGE, self.inner.backend.parts().images.as_ref(), spec)?;
        self.inner.backend.check(spec, self.inner.can())
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        self.make(id, spec, Kind::Box).await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        self.tracked(async move { inner.stop(&id).await }, "remove a box").await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        self.listed(Inner::list_boxes, "list the boxes").await
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        let folder = self.inner.folder(id);
        if !folder.exists() {
            return Err(Error::Gone);
        }
        self.inner.guest(&self.inner.boxes.entry(id), &folder).await
    }

    fn runs(&self, id: &SandboxId) -> Option<bool> {
        self.inner.boxes.known(id)?.runs()
    }

    fn slots(&self) -> Option<&dyn Slots> {
        self.inner.backend.properties(self.inner.can()).holds_slots.then_some(self)
    }

    fn pauses(&self) -> Option<&dyn Pauses> {
        self.inner.backend.pauser().map(|_| self as &dyn Pauses)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.inner.backend.snapshot_writer(self.inner.can()).map(|_| self as &dyn Snapshots)
    }

    fn kernel(&self) -> Option<String> {
        self.inner.backend.kernel()
    }

    fn image_snapshots(&self) -> Option<ImageSnapshots> {
        self.inner.backend.image_snapshots()
    }

    fn disk(&self) -> Option<BoxDisk> {
        let properties = self.inner.backend.properties(self.inner.can());
        let dir = self.inner.backend.parts().folders.boxes.clone();
        // A machine reads its image from a drive that all of the image have.
        let copies_image = B::COPIES_IMAGE && !B::KEEPS_MEMORY;
        Some(BoxDisk {
            dir,
            holds_bounded: properties.is_bounded_on_disk,
            copies_image,
            copies_snapshot: properties.copies_snapshot,
        })
    }

    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        self.inner.disk_usage(self.inner.folder(id)).await
    }

    async fn kernel_usage(&self, id: &SandboxId, share: KernelShare) -> Option<u64> {
        kernel_usage(self.inner.folder(id).pid()?.0, share).await
    }

    async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        measured(ids.iter().map(|id| self.inner.folder(id)).collect()).await
    }
}
