//! Boxes of namespaces, overlays and control groups.
//!
//! ```text
//! <data>/native/boxes/<sandbox id>/layers/      its changes, owned by the box
//!                                  disk.img     or these, if they are bounded
//! <data>/native/stock/                          folders prepared for boxes
//! ```

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::{CgroupDir, Launch, Overlay, Storage};
use host_disk::remove_tree;
use tokio::task::JoinSet;

use super::capabilities::Capabilities;
use super::host_mounts::HostMounts;
use super::prepared_dirs::{PreparedDirs, layers};
use super::size_view::SizeViews;
use super::{disk, host, layer_copies, snapshot};
use crate::local::abilities::{self, Pauser, SnapshotWriter};
use crate::local::agent_socket::{self, Running};
use crate::local::backend::{Backend, BoxProperties, OwnFiles};
use crate::local::cgroup::freezer::Freezer;
use crate::local::cgroup::{self, Cgroups, CpuWeight};
use crate::local::fault::{not_made, not_written};
use crate::local::folder::BoxFolder;
use crate::local::fs_image::make_ext4;
use crate::local::host_rootfs::{self, HOSTNAME, ROOT_OVERLAY, overlay_of};
use crate::local::image::HOST;
use crate::local::launcher::Launchers;
use crate::local::parts::Parts;
use crate::local::plan::{BoxPlan, Kind};
use crate::local::probe::Probe;
use crate::local::process::Process;
use crate::local::record::Record;
use crate::local::snapshot_folder::{SnapshotFolder, removed};
use crate::snapshots::copy_is_full;
use crate::{Error, Facts, Result, Spec};

/// Time for the first process of a box to end, and all others with it, before each is killed
/// separately. It may be blocked, deaf to signals, on a pipe held by a process that waits for
/// memory of the box, behind every box of the host that does.
const ALONE_WAIT: Duration = Duration::from_secs(1);

type Plan<'a> = BoxPlan<'a, Capabilities>;

/// Way to make boxes with kernel features.
#[derive(Debug)]
pub struct NativeBackend {
    pub(super) parts: Parts,
    pub(super) cgroups: Cgroups,
    pub(super) stock: PreparedDirs,
    pub(super) launchers: Launchers,
    pub(super) views: SizeViews,
    pub(super) mounts: HostMounts,
    /// True if connections out of boxes are led to their agents.
    pub(super) transparent: bool,
    pub(super) fsync: bool,
    /// Background tasks, aborted when the provider is dropped.
    pub(super) _background: JoinSet<()>,
}

impl Drop for NativeBackend {
    fn drop(&mut self) {
        self.cgroups.tidy();
    }
}

impl Backend for NativeBackend {
    const NAME: &'static str = "native";
    const COPIES_IMAGE: bool = false;
    const DEFAULT_IMAGE: &'static str = HOST;

    type Socket = UnixListener;
    type Capabilities = Capabilities;
    type Order = Launch;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    async fn probe(&self) -> Probe<Capabilities> {
        host::probe(self, &self.cgroups, self.transparent).await
    }

    fn facts(&self, probe: &Probe<Capabilities>) -> Facts {
        host::facts(probe, &self.cgroups, self.transparent)
    }

    fn check(&self, spec: &Spec, can: Option<Capabilities>) -> Result<()> {
        let is_in_memory = spec.resources.disk_mb > 0 && !can.is_some_and(|can| can.images);
        if is_in_memory && spec.snapshot.is_some() && !can.is_some_and(|can| can.privileged) {
            return Err(Error::NotSupported(
                "the provider native counts disk_mb against the memory of the box on this host, which has no room for \
                 the files of a snapshot; spawn from the snapshot without disk_mb, or run the server as root"
                    .to_owned(),
            ));
        }
        if is_in_memory && spec.resources.disk_mb > spec.resources.memory_mb {
            return Err(Error::NotSupported(
                "the provider native counts disk_mb against the memory of the box on this host, so disk_mb cannot \
                 exceed memory_mb"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    fn properties(&self, can: Option<Capabilities>) -> BoxProperties {
        let is_privileged = can.is_none_or(|can| can.privileged);
        BoxProperties {
            // Without root a box has one user only.
            holds_slots: is_privileged,
            has_ids: is_privileged,
            is_bounded_on_disk: can.is_none_or(|can| can.images),
            copies_snapshot: !is_privileged,
        }
    }

    fn pauser(&self) -> Option<&dyn Pauser> {
        self.cgroups.can_freeze().then_some(self)
    }

    fn snapshot_writer(&self, can: Option<Capabilities>) -> Option<&dyn SnapshotWriter> {
        // Without a freezer files change while they are read, and the snapshot would be inconsistent.
        let has_snapshots = can.is_some_and(|can| can.snapshots) && self.cgroups.can_freeze();
        has_snapshots.then_some(self)
    }

    fn own_files(&self, folder: &BoxFolder, can: Option<Capabilities>) -> Option<OwnFiles> {
        let has_image = disk::image_file(folder).exists();
        (has_image || layers(folder).exists()).then(|| OwnFiles {
            path: folder.path().to_owned(),
            // In an image file they are counted as part of it.
            holds_deleted: !has_image && can.is_some_and(|can| can.disk_upper),
        })
    }

    fn cgroups(&self, plan: &Plan<'_>) -> Vec<CgroupDir> {
        match &plan.kind {
            Kind::Slot { host, .. } => self.cgroups.of_slot(host, plan.id),
            Kind::Box | Kind::Host => self.cgroups.of(plan.id),
        }
    }

    fn make_folder(&self, folder: &BoxFolder) -> io::Result<UnixListener> {
        self.stock.take(folder)
    }

    async fn prepare(&self, plan: &Plan<'_>, id_base: Option<u32>) -> Result<Launch> {
        let snapshot = plan.snapshot.as_ref().map(|snapshot| snapshot_layers(plan, snapshot)).transpose()?;
        let storage = storage(&plan.folder, self.disk_mb(plan)?, plan.spec.resources.memory_mb, plan.can).await?;
        if let Some(snapshot) = plan.snapshot.as_ref().filter(|_| !plan.can.privileged) {
            layer_copies::restore(snapshot, &plan.folder).await?;
        }
        let groups = self.cgroups(plan);
        self.cgroups.make(&groups, &plan.spec.resources).map_err(not_made)?;
        let oom_events = self.cgroups.oom_events(&groups);
        let cgroups = match plan.kind {
            Kind::Host => self.cgroups.divide(groups).map_err(not_made)?,
            Kind::Box | Kind::Slot { .. } => groups,
        };
        let host = &self.parts.host_rootfs;
        let lower = plan.image.map_or(host.path.as_path(), |image| image.held.root());
        let root = self.overlay("/", lower.display().to_string(), ROOT_OVERLAY.to_owned());
        // An image needs nothing of the host's `/usr`.
        let shown = host.shown.iter().filter(|_| plan.image.is_none());
        let shown: Vec<Overlay> = shown.map(|dir| self.overlay(dir, dir.clone(), overlay_of(dir))).collect();
        let inner_mounts = if shown.is_empty() { Vec::new() } else { self.mounts.below(&host.shown) };
        let holds_slots = matches!(plan.kind, Kind::Host);
        let starts = plan.image.filter(|image| image.entrypoint && !holds_slots);
        // A box that holds slots runs no command.
        let size_view = (!holds_slots).then(|| self.views.of(&plan.spec.resources, &cgroups));
        Ok(Launch {
            hostname: HOSTNAME.to_owned(),
            dir: plan.folder.path().display().to_string(),
            id_base,
            overlays: std::iter::once(root).chain(shown).collect(),
            snapshot: snapshot.unwrap_or_default(),
            inner_mounts,
            storage,
            // What is in it counts as memory of the box, so no lower bound is needed.
            shm_mb: plan.spec.resources.memory_mb / 2,
            cgroups,
            oom_events,
            soft: self.cgroups.soft(&plan.spec.resources),
            deadline_ms: u64::try_from(plan.spec.lifetime.as_millis()).unwrap_or(u64::MAX),
            holds_slots,
            slot: if let Kind::Slot { slot, .. } = plan.kind { Some(slot) } else { None },
            defaults: plan.image.map_or_else(host_rootfs::defaults, |image| image.held.run().defaults.clone()),
            memory_mb: plan.spec.resources.memory_mb,
            entrypoint: starts.map(|image| image.held.run().entrypoint.clone()),
            furnish: plan.image.is_some(),
            // A box that holds slots runs no command.
            transparent: self.transparent && !holds_slots,
            trust: plan.spec.trust.clone(),
            size_view,
        })
    }

    async fn launch(&self, folder: &BoxFolder, listener: UnixListener, order: Launch) -> Result<Running> {
        let running = agent_socket::run(folder, self.launchers.launch(listener, &order)).await?;
        self.stock.refill();
        self.launchers.refill();
        Ok(running)
    }

    async fn kill(&self, folder: &BoxFolder, record: &Record, process: Option<&Process>) -> io::Result<()> {
        // At the low weight, hundreds of processes would not end in time. If this fails, the end
        // only takes longer.
        let _ = self.cgroups.weigh(&folder.name(), CpuWeight::Usual);
        if let Some(process) = process {
            process.kill()?;
            thaw_killed(record)?;
            if process.ended_within(ALONE_WAIT).await {
                return Ok(());
            }
        }
        cgroup::kill_members(&record.cgroups);
        thaw_killed(record)
    }

    async fn release(&self, _folder: &BoxFolder, record: &Record) -> io::Result<()> {
        cgroup::remove(&record.cgroups).await
    }
}

#[async_trait]
impl Pauser for NativeBackend {
    async fn pause(&self, _: &BoxFolder, record: &Record) -> Result<bool> {
        abilities::freeze(record).await
    }

    async fn resume(&self, _: &BoxFolder, record: &Record) -> Result<()> {
        abilities::thaw(record)
    }

    fn is_paused(&self, _: &BoxFolder, record: &Record) -> bool {
        abilities::is_frozen(record)
    }

    fn can_reclaim(&self) -> bool {
        self.cgroups.can_reclaim()
    }
}

#[async_trait]
impl SnapshotWriter for NativeBackend {
    async fn write(&self, folder: &BoxFolder, record: &Record, new: &SnapshotFolder) -> Result<u64> {
        snapshot::keep(folder, record, new).await
    }
}

impl NativeBackend {
    /// Returns the overlay that shows the directory `lower` at `target`.
    fn overlay(&self, target: &str, lower: String, name: String) -> Overlay {
        Overlay { target: target.to_owned(), lower: vec![lower], name, fsync: self.fsync }
    }

    /// Returns the bound on what a box writes: of a copy, without what it takes of the bound already by layers
    /// that no snapshot keeps.
    fn disk_mb(&self, plan: &Plan<'_>) -> Result<u32> {
        let bound = plan.spec.resources.disk_mb;
        let Some(snapshot) = plan.snapshot.as_ref().filter(|_| plan.spec.is_copy && bound > 0) else {
            return Ok(bound);
        };
        let taken = self.parts.folders.layers_beside(&plan.folder, snapshot).map_err(not_written)?;
        let taken_mb = u32::try_from(taken >> 20).unwrap_or(u32::MAX);
        bound.checked_sub(taken_mb).filter(|left| *left > 0).ok_or_else(|| copy_is_full(taken_mb, bound))
    }
}

/// Thaws processes that were killed: in version 1 a signal ends no process that is frozen.
fn thaw_killed(record: &Record) -> io::Result<()> {
    Freezer::of(&record.cgroups).map_or(Ok(()), |freezer| freezer.thaw())
}

/// Returns the layers of a snapshot, under names of the box's own: the snapshot may be removed. Without
/// privileges the box begins with copies instead, and has none.
fn snapshot_layers(plan: &Plan<'_>, snapshot: &SnapshotFolder) -> Result<Vec<String>> {
    let is_copied = layer_copies::copies(snapshot).exists();
    if is_copied == plan.can.privileged && snapshot.path().exists() {
        let way = if is_copied { "without root" } else { "as root" };
        return Err(Error::NotSupported(format!(
            "the snapshot was taken by a server that ran {way}; run the server {way} to spawn from the snapshot"
        )));
    }
    if is_copied {
        return Ok(Vec::new());
    }
    let layers = plan.folder.take_layers(snapshot).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            return removed();
        }
        not_written(error)
    })?;
    Ok(layers.iter().map(|layer| layer.display().to_string()).collect())
}

async fn storage(folder: &BoxFolder, disk_mb: u32, memory_mb: u32, can: Capabilities) -> Result<Storage> {
    if disk_mb > 0 && can.images {
        let image = disk::image_file(folder);
        make_ext4(&image, disk_mb, None).await.map_err(not_written)?;
        return Ok(Storage::Image(image.display().to_string()));
    }
    if disk_mb == 0 && can.disk_upper {
        let layers = layers(folder);
        match fs::create_dir(&layers) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(not_written(error)),
            Ok(()) | Err(_) => {}
        }
        return Ok(Storage::Directory(layers.display().to_string()));
    }
    // Those made in advance would stand for changes that are in memory.
    remove_tree(&layers(folder)).map_err(not_written)?;
    // Counted to the box's memory anyway; half leaves room for its processes.
    Ok(Storage::TmpfsMb(if disk_mb > 0 { disk_mb } else { memory_mb / 2 }))
}
