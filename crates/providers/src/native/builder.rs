//! Making and removal of a box, without state in memory.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use domain::{Resources, SandboxId};
use guest_protocol::{CgroupDir, Launch, Overlay, Slot, Storage};
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

use super::disk;
use super::host::Capabilities;
use super::image::Image;
use super::prepared_dirs::PreparedDirs;
use super::record::{BoxFolder, Folders, Record};
use crate::agent::AgentGuest;
use crate::disk::refused;
use crate::local::agent_file::AgentFile;
use crate::local::cgroup::{self, Cgroups, CpuWeight};
use crate::local::host_rootfs::{HOSTNAME, HostRootfs, ROOT_OVERLAY, overlay_of};
use crate::local::ids::IdPool;
use crate::local::launcher;
use crate::local::process::Process;
use crate::local::removals::Removals;
use crate::{Error, Phase, Result};

/// Limit for a killed box to end. Its processes may be blocked in the kernel, writing to a slow
/// disk.
const END_WAIT: Duration = Duration::from_secs(20);
/// Time for the first process of a box to end, and all others with it, before each is killed
/// separately. It may be blocked, deaf to signals, on a pipe held by a process that waits for
/// memory of the box, behind every box of the host that does.
const ALONE_WAIT: Duration = Duration::from_secs(1);
/// Most MiB of `/dev/shm`, as in container engines; less if the box has little memory.
const SHM_MB_MAX: u32 = 64;
/// Name of the socket in a box's folder.
const SOCKET: &str = "agent.sock";

/// Shared parts that boxes are made from.
#[derive(Debug)]
pub(super) struct BoxBuilder {
    pub(super) folders: Folders,
    pub(super) agent: AgentFile,
    pub(super) skeleton: HostRootfs,
    pub(super) ids: IdPool,
    pub(super) cgroups: Cgroups,
    pub(super) tasks: TaskTracker,
    pub(super) removals: Removals,
    pub(super) stock: PreparedDirs,
}

/// Plan of a box or slot to make.
#[derive(Debug)]
pub(super) struct BoxPlan<'a> {
    pub(super) folder: BoxFolder,
    pub(super) cgroups: Vec<CgroupDir>,
    pub(super) kind: Kind,
    pub(super) resources: &'a Resources,
    pub(super) lifetime: Duration,
    pub(super) can: Capabilities,
    /// Image of the root; `None` for `host`.
    pub(super) image: Option<&'a Image>,
}

/// Kind of box to make.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A box of one sandbox.
    Box,
    /// A box that holds slots.
    Host,
    /// A slot in a box that holds slots, whose range of ids begins at `id_base`.
    Slot {
        /// First id of the box.
        id_base: u32,
        /// Process of the box, and uid of the slot in it.
        slot: Slot,
    },
}

/// Running box that has answered.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) process: Process,
    pub(super) guest: AgentGuest,
    pub(super) phases: Vec<Phase>,
    /// True if its devices are the very files of the host.
    pub(super) shares_devices: bool,
}

/// Action that errors name.
const ACTION: &str = "make a box";

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::failed(ACTION, source)
}

fn on_disk(error: std::io::Error) -> Error {
    refused(ACTION, error)
}

impl BoxBuilder {
    /// Makes a box or a slot in a folder that must not exist yet. On error the caller must remove
    /// the folder and everything that it records.
    pub(super) async fn make(&self, what: &BoxPlan<'_>) -> Result<Made> {
        let begin = Instant::now();
        let BoxPlan { folder, cgroups, resources, .. } = what;
        self.stock.take(folder).map_err(on_disk)?;
        let id_base = self.record(what)?;
        let storage = storage(folder, resources, what.can).await?;
        self.cgroups.make(cgroups, resources).map_err(failed)?;
        let joined = match what.kind {
            Kind::Host => self.cgroups.divide(cgroups.clone()).map_err(failed)?,
            Kind::Box | Kind::Slot { .. } => cgroups.clone(),
        };
        let dir = open_dir(folder.path()).map_err(failed)?;
        let listener = UnixListener::bind(socket_path(&dir)).map_err(on_disk)?;
        listener.set_nonblocking(true).map_err(failed)?;
        // Connected before the agent listens: the first request waits in the socket.
        let stream = UnixStream::connect(socket_path(&dir)).await.map_err(failed)?;
        let order = self.order(what, joined, id_base, storage);
        let (launched, guest) = tokio::join!(
            async { (launcher::launch(&self.agent, listener, &order).await, begin.elapsed()) },
            AgentGuest::connect(stream)
        );
        let (launched, box_took) = launched;
        // If both failed, the launcher has the cause.
        let shares_devices = launched.map_err(launcher::failed)?.shares_devices;
        let guest = guest?;
        let process = match folder.pid() {
            Some((pid, started)) => Process::find(pid, started).map_err(failed)?.ok_or(Error::Gone)?,
            None => return Err(failed("the launcher recorded no process")),
        };
        let agent_took = begin.elapsed().saturating_sub(box_took);
        let phases = vec![Phase { name: "box", took: box_took }, Phase { name: "agent", took: agent_took }];
        self.stock.refill();
        Ok(Made { process, guest, phases, shares_devices })
    }

    /// Returns the plan of an ordinary box of the image `host`.
    pub(super) fn a_box<'a>(
        &self,
        id: &SandboxId,
        resources: &'a Resources,
        lifetime: Duration,
        can: Capabilities,
    ) -> BoxPlan<'a> {
        let (folder, cgroups) = (self.folders.of(id), self.cgroups.of(id));
        BoxPlan { folder, cgroups, kind: Kind::Box, resources, lifetime, can, image: None }
    }

    /// Takes ids and records what will belong to the box.
    fn record(&self, what: &BoxPlan<'_>) -> Result<Option<u32>> {
        let mut record = Record::new(what.cgroups.clone(), &self.skeleton.path);
        record.image = what.image.map(|image| image.held.digest().to_owned());
        match what.kind {
            Kind::Slot { id_base, slot } => {
                record.slot_uid = Some(slot.uid);
                what.folder.write(&record).map_err(on_disk)?;
                return Ok(Some(id_base));
            }
            Kind::Host => record.holds_slots = true,
            Kind::Box => {}
        }
        record.id_base = if what.can.privileged { Some(self.ids.take()?) } else { None };
        if let Err(error) = what.folder.write(&record) {
            if let Some(base) = record.id_base {
                self.ids.give_back(base);
            }
            return Err(on_disk(error));
        }
        Ok(record.id_base)
    }

    fn order(&self, what: &BoxPlan<'_>, joined: Vec<CgroupDir>, id_base: Option<u32>, storage: Storage) -> Launch {
        let lower = what.image.map_or(self.skeleton.path.as_path(), |image| image.held.root());
        let root =
            Overlay { target: "/".to_owned(), lower: vec![lower.display().to_string()], name: ROOT_OVERLAY.to_owned() };
        // An image needs nothing of the host's `/usr`.
        let shown = self.skeleton.shown.iter().filter(|_| what.image.is_none());
        let shown = shown.map(|dir| Overlay { target: dir.clone(), lower: vec![dir.clone()], name: overlay_of(dir) });
        let starts = what.image.filter(|image| image.entrypoint && !matches!(what.kind, Kind::Host));
        Launch {
            hostname: HOSTNAME.to_owned(),
            dir: what.folder.path().display().to_string(),
            id_base,
            overlays: std::iter::once(root).chain(shown).collect(),
            storage,
            shm_mb: (what.resources.memory_mb / 2).min(SHM_MB_MAX),
            cgroups: joined,
            oom_events: self.cgroups.oom_events(&what.cgroups),
            soft: self.cgroups.soft(what.resources),
            deadline_ms: u64::try_from(what.lifetime.as_millis()).unwrap_or(u64::MAX),
            holds_slots: matches!(what.kind, Kind::Host),
            slot: if let Kind::Slot { slot, .. } = what.kind { Some(slot) } else { None },
            defaults: what.image.map(|image| image.held.run().defaults.clone()).unwrap_or_default(),
            memory_mb: what.resources.memory_mb,
            entrypoint: starts.map(|image| image.held.run().entrypoint.clone()),
            furnish: what.image.is_some(),
        }
    }

    /// Opens a connection to the agent of a box.
    pub(super) async fn dial(&self, folder: &BoxFolder) -> Result<AgentGuest> {
        let gone = |error: std::io::Error| {
            let absent = [std::io::ErrorKind::NotFound, std::io::ErrorKind::ConnectionRefused];
            if absent.contains(&error.kind()) { Error::Gone } else { Error::failed("reach the agent", error) }
        };
        let dir = open_dir(folder.path()).map_err(gone)?;
        let stream = UnixStream::connect(socket_path(&dir)).await.map_err(gone)?;
        AgentGuest::connect(stream).await
    }

    /// Ends a box and removes all of it. Its files are moved to the trash and deleted in the
    /// background. May be repeated at any time.
    pub(super) async fn remove(&self, folder: &BoxFolder, process: Option<&Process>) -> Result<()> {
        const ACTION: &str = "remove a box";
        let failed = |error: std::io::Error| Error::failed(ACTION, error);
        let record = folder.read();
        let cgroups = record.as_ref().map(|record| record.cgroups.clone()).unwrap_or_default();
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
        // At the low weight, hundreds of processes would not end in time. If this fails, the end
        // only takes longer.
        let _ = self.cgroups.weigh(&name, CpuWeight::Usual);
        // After a start that failed late, no entry holds the process.
        let found = match (process, folder.pid()) {
            (None, Some((pid, started))) => Process::find(pid, started).map_err(failed)?,
            _ => None,
        };
        match process.or(found.as_ref()) {
            Some(process) => {
                process.kill().map_err(failed)?;
                if !process.ended_within(ALONE_WAIT).await {
                    cgroup::kill_members(&cgroups);
                }
                if !process.ended_within(END_WAIT).await {
                    return Err(Error::failed(ACTION, "its first process does not end"));
                }
            }
            None => cgroup::kill_members(&cgroups),
        }
        cgroup::remove(&cgroups).await.map_err(failed)?;
        let trash = self.folders.trash.join(Removals::name(&name));
        match std::fs::rename(folder.path(), &trash) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
        let (ids, id_base) = (self.ids.clone(), record.and_then(|record| record.id_base));
        self.removals.discard(trash, move |removed| {
            // Files that stay belong to these ids, so another box must not get them.
            if let (true, Some(base)) = (removed, id_base) {
                ids.give_back(base);
            }
        });
        Ok(())
    }

    /// Deletes what an earlier server left in the trash, and its stock, which was made for its
    /// own layers.
    pub(super) fn empty_trash(&self) -> std::io::Result<()> {
        for entry in std::fs::read_dir(&self.folders.stock)? {
            std::fs::rename(entry?.path(), self.folders.trash.join(Removals::name("stock")))?;
        }
        for entry in std::fs::read_dir(&self.folders.trash)? {
            self.removals.discard(entry?.path(), |_| {});
        }
        Ok(())
    }
}

async fn storage(folder: &BoxFolder, resources: &Resources, can: Capabilities) -> Result<Storage> {
    if resources.disk_mb > 0 && can.images {
        disk::make_image(&folder.image(), resources.disk_mb).await.map_err(on_disk)?;
        return Ok(Storage::Image(folder.image().display().to_string()));
    }
    if resources.disk_mb > 0 {
        return Ok(Storage::TmpfsMb(resources.disk_mb));
    }
    if can.disk_upper {
        match std::fs::create_dir(folder.layers()) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(on_disk(error)),
            Ok(()) | Err(_) => {}
        }
        return Ok(Storage::Directory(folder.layers().display().to_string()));
    }
    // Counted to the box's memory anyway; half leaves room for its processes.
    Ok(Storage::TmpfsMb(resources.memory_mb / 2))
}

fn open_dir(path: &Path) -> std::io::Result<std::os::fd::OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns a short path of the socket: the kernel takes 107 bytes, and a data folder's path may
/// be longer.
fn socket_path(dir: &impl std::os::fd::AsRawFd) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd())
}
