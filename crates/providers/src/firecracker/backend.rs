//! Boxes that are virtual machines.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::Resources;
use guest_protocol::{CgroupDir, Machine, Network, Vmm};
use images::ImageGuard;
use parking_lot::RwLock;

use super::console::Console;
use super::drives::Drives;
use super::host::{self, Found, Machines, Programs};
use super::image_files::ImageFiles;
use super::machine::{self, Boot, Starting};
use super::saved::{Checks, Saved, SavedRecord};
use super::suspend::{self, Keeper};
use super::templates::{Making, Properties, Templates};
use super::vmm::{self, Jail};
use super::work_dir::{self, MachineFile, WorkDir};
use crate::agent::AgentGuest;
use crate::local::abilities::{Pauser, SnapshotWriter, Suspender};
use crate::local::agent_socket::{BOX_PHASE, Running};
use crate::local::backend::{Backend, BoxProperties, OwnFiles};
use crate::local::builder::try_box;
use crate::local::cgroup::{self, Cgroups};
use crate::local::fault::{not_made, not_written};
use crate::local::file_key::{FileKey, files_in};
use crate::local::folder::BoxFolder;
use crate::local::parts::Parts;
use crate::local::plan::BoxPlan;
use crate::local::probe::{Probe, probe_id};
use crate::local::process::Process;
use crate::local::record::Record;
use crate::local::snapshot_folder::SnapshotFolder;
use crate::{Error, Facts, Guest as _, ImageSnapshots, Result, Spec};

/// Least memory of a machine, that of a probe: the kernels of distributions, with their first files, take
/// half of it to boot.
const MEMORY_MB_MIN: u32 = host::PROBE_MEMORY_MB;
/// Most processors of a machine.
const VCPUS_MAX: u32 = 32;

type Plan<'a> = BoxPlan<'a, Machines>;

/// Start of a machine whose files are in place.
#[derive(Debug)]
pub struct Order {
    room: WorkDir,
    vmm: Vmm,
    boot: Boot,
    origin: Origin,
}

/// Way in which a machine comes to be.
#[derive(Debug)]
enum Origin {
    /// It boots.
    Boot,
    /// It boots, and a template is made of it.
    Template { making: Making, image: PathBuf, record: SavedRecord },
    /// It is made from a template. If it cannot be, it needs another drive of this size for this user.
    Restore { saved: Saved, drive_mb: u32, id_base: Option<u32> },
    /// It goes on from a snapshot of a box.
    Wake,
}

/// Makes a machine from a template, and has it make its box. Returns also when it went on.
async fn from_template(
    starting: Starting<'_>,
    boot: &Boot,
    saved: &Saved,
) -> std::result::Result<(AgentGuest, Instant), machine::Failed> {
    let waiting = machine::restore(starting, boot, u64::from(saved.record.drive_mb) << 20).await?;
    let launched = Instant::now();
    Ok((machine::settle(starting.room, waiting, &boot.machine).await?, launched))
}

/// Way to make boxes with Firecracker.
#[derive(Debug)]
pub struct FirecrackerBackend {
    pub(super) parts: Parts,
    pub(super) cgroups: Cgroups,
    pub(super) programs: Programs,
    /// Programs that the last probe has found.
    pub(super) found: RwLock<Option<Found>>,
    pub(super) image_files: ImageFiles,
    pub(super) drives: Drives,
    pub(super) templates: Arc<Templates>,
    /// Snapshots and suspended boxes whose files were checked.
    pub(super) checks: Checks,
    pub(super) jailed: bool,
    /// Limit for a guest to boot.
    pub(super) boot_timeout: Duration,
}

impl Drop for FirecrackerBackend {
    fn drop(&mut self) {
        self.cgroups.tidy();
    }
}

impl Backend for FirecrackerBackend {
    const NAME: &'static str = "firecracker";
    const COPIES_IMAGE: bool = true;
    const DEFAULT_IMAGE: &'static str = "debian:stable-slim";
    const KEEPS_MEMORY: bool = true;

    type Socket = ();
    type Capabilities = Machines;
    type Order = Order;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    async fn probe(&self) -> Probe<Machines> {
        let found = match self.programs.find().await {
            Ok(found) => found,
            Err(error) => return Probe { error: Some(error), ..Probe::default() },
        };
        let version = Some(found.version.clone());
        *self.found.write() = Some(found);
        let probe = Probe { version, missing: self.cgroups.missing.clone(), ..Probe::default() };
        match try_box(self, &host::probe_size(), Machines).await {
            Ok(_) => Probe { can: Some(Machines), ..probe },
            Err(error) => Probe { error: Some(host::explain(&error)), ..probe },
        }
    }

    fn facts(&self, probe: &Probe<Machines>) -> Facts {
        host::facts(probe, &self.cgroups, self.jailed)
    }

    fn check(&self, spec: &Spec, _: Option<Machines>) -> Result<()> {
        let Resources { memory_mb, vcpus, .. } = spec.resources;
        if memory_mb < MEMORY_MB_MIN {
            return Err(Error::Invalid(format!(
                "memory_mb is {memory_mb}, too little to boot a machine; the minimum on the provider firecracker is \
                 {MEMORY_MB_MIN}"
            )));
        }
        if let Some(snapshot) = &spec.snapshot {
            return suspend::check_size(&self.parts.folders.snapshot(snapshot), &spec.resources);
        }
        if vcpus > VCPUS_MAX {
            return Err(Error::Invalid(format!(
                "vcpus is {vcpus}; the maximum on the provider firecracker is {VCPUS_MAX}"
            )));
        }
        Ok(())
    }

    fn properties(&self, _: Option<Machines>) -> BoxProperties {
        BoxProperties { holds_slots: false, has_ids: true, is_bounded_on_disk: true, copies_snapshot: true }
    }

    fn pauser(&self) -> Option<&dyn Pauser> {
        Some(self)
    }

    fn snapshot_writer(&self, can: Option<Machines>) -> Option<&dyn SnapshotWriter> {
        can.is_some().then_some(self)
    }

    fn suspender(&self) -> Option<&dyn Suspender> {
        Some(self)
    }

    fn kernel(&self) -> Option<String> {
        self.found.read().as_ref()?.kernel.release.clone()
    }

    fn image_snapshots(&self) -> Option<ImageSnapshots> {
        Some(self.templates.list())
    }

    /// Returns the drive with the changes. What a box deletes stays in the drive until the box ends.
    fn own_files(&self, folder: &BoxFolder, _: Option<Machines>) -> Option<OwnFiles> {
        Some(OwnFiles { path: WorkDir::find(folder).file(work_dir::CHANGES), holds_deleted: false })
    }

    fn shared_files(&self, folder: &BoxFolder) -> io::Result<Vec<PathBuf>> {
        let room = WorkDir::find(folder);
        let of_machine = [work_dir::STATE, work_dir::MEMORY, work_dir::IMAGE].map(|name| room.file(name));
        let on_disk = [work_dir::STATE, work_dir::MEMORY].map(|name| room.suspended().join(name));
        Ok(of_machine.into_iter().chain(on_disk).filter(|path| path.symlink_metadata().is_ok()).collect())
    }

    fn kept_files(&self) -> io::Result<HashSet<FileKey>> {
        let snapshots = self.parts.folders.all_snapshots()?;
        let snapshots = snapshots.into_iter().map(|(_, snapshot)| snapshot.path().to_owned());
        let others = self.templates.dirs().into_iter().chain([self.image_files.dir().to_owned()]);
        files_in(snapshots.chain(others))
    }

    fn cgroups(&self, plan: &Plan<'_>) -> Vec<CgroupDir> {
        self.cgroups.of(plan.id)
    }

    fn make_folder(&self, folder: &BoxFolder) -> io::Result<()> {
        folder.make()
    }

    async fn prepare(&self, plan: &Plan<'_>, id_base: Option<u32>) -> Result<Order> {
        let found = self.found.read().clone();
        let found = found.ok_or_else(|| not_made("Firecracker was not found"))?;
        let program = found.firecracker.file_name().filter(|_| self.jailed);
        let room = WorkDir::new(&plan.folder, program);
        let size_mb = Drives::size_mb(plan.spec.resources.disk_mb);
        room.make(id_base).map_err(not_written)?;
        match &plan.snapshot {
            None => self.make_drive(&room, size_mb, id_base).await?,
            Some(snapshot) => {
                self.keeper().put(snapshot, &room).await?;
                work_dir::give(&room.file(work_dir::CHANGES), id_base).map_err(not_written)?;
            }
        }
        for (file, name) in [(&found.kernel.kernel, work_dir::KERNEL), (&found.kernel.initrd, work_dir::INITRD)] {
            fs::hard_link(file, room.file(name)).map_err(not_written)?;
        }
        let boot = Boot {
            vcpus: u8::try_from(plan.spec.resources.vcpus.clamp(1, VCPUS_MAX)).unwrap_or(1),
            memory_mb: plan.spec.resources.memory_mb,
            limiter: self.drives.limiter(),
            wait: self.boot_timeout,
            machine: machine(plan, size_mb)?,
        };
        machine::line(&boot.machine).map_err(not_made)?;
        let origin = match plan.snapshot {
            None => self.origin(plan, &found, &room, &boot, id_base).await?,
            Some(_) => Origin::Wake,
        };
        let groups = self.cgroups(plan);
        let machine = MachineFile {
            vmm: self.vmm(plan, &found, &room, id_base, groups)?,
            memory_mb: boot.memory_mb,
            vcpus: boot.vcpus.into(),
            drive_mb: size_mb,
            version: found.version,
        };
        room.write_machine(&machine).map_err(not_written)?;
        vmm::make_groups(&self.cgroups, &machine)?;
        Ok(Order { vmm: machine.vmm, room, boot, origin })
    }

    async fn launch(&self, folder: &BoxFolder, (): (), order: Order) -> Result<Running> {
        let Order { room, vmm, boot, origin } = order;
        let console = Console::open(&room).map_err(not_made)?;
        let mut process = vmm::start(&self.parts.agent, folder, &vmm, &console).await?;
        let tasks = &self.parts.tasks;
        let starting = Starting { room: &room, process: &process, tasks };
        let waiting = match origin {
            Origin::Wake => {
                let guest = machine::wake(starting, boot.wait, &suspend::renewed(&boot.machine), || Ok(())).await;
                let guest = guest.map_err(|error| console.ended(&error))?;
                let launched = Instant::now();
                if let Some(certificate) = &boot.machine.boot.trust {
                    guest.trust(certificate).await?;
                }
                return Ok(Running { process, guest, shares_devices: false, launched, phase: machine::RESTORE_PHASE });
            }
            Origin::Boot => machine::boot(starting, &boot).await,
            Origin::Template { making, image, record } => match machine::boot(starting, &boot).await {
                Ok(waiting) => {
                    let saved = machine::save(starting, &boot, waiting).await;
                    if let Ok((_, true)) = saved {
                        self.make_template(making, &room, image, record);
                    }
                    saved.map(|(waiting, _)| waiting)
                }
                failed => failed,
            },
            Origin::Restore { saved, drive_mb, id_base } => match from_template(starting, &boot, &saved).await {
                Ok((guest, launched)) => {
                    let phase = machine::RESTORE_PHASE;
                    return Ok(Running { process, guest, shares_devices: false, launched, phase });
                }
                Err(error) => {
                    self.templates.fall_back(&saved, &console.ended(&error));
                    process.kill().map_err(not_made)?;
                    if !process.ended_within(vmm::ALONE_WAIT).await {
                        return Err(not_made("a process that could not load a machine did not exit"));
                    }
                    room.clear().map_err(not_made)?;
                    // The machine may have written to it.
                    room.remove([work_dir::CHANGES]).map_err(not_made)?;
                    self.make_drive(&room, drive_mb, id_base).await?;
                    process = vmm::start(&self.parts.agent, folder, &vmm, &console).await?;
                    machine::boot(Starting { room: &room, process: &process, tasks }, &boot).await
                }
            },
        };
        let waiting = waiting.map_err(|error| console.ended(&error))?;
        let launched = Instant::now();
        let guest = machine::settle(&room, waiting, &boot.machine).await;
        let guest = guest.map_err(|error| console.ended(&error))?;
        Ok(Running { process, guest, shares_devices: false, launched, phase: BOX_PHASE })
    }

    async fn dial(&self, folder: &BoxFolder) -> Result<AgentGuest> {
        machine::dial(&WorkDir::find(folder)).await
    }

    async fn kill(&self, _: &BoxFolder, record: &Record, process: Option<&Process>) -> io::Result<()> {
        if let Some(process) = process {
            process.kill()?;
            if process.ended_within(vmm::ALONE_WAIT).await {
                return Ok(());
            }
        }
        cgroup::kill_members(&record.cgroups);
        Ok(())
    }

    async fn release(&self, _: &BoxFolder, record: &Record) -> io::Result<()> {
        cgroup::remove(&record.cgroups).await
    }
}

#[async_trait]
impl Pauser for FirecrackerBackend {
    /// Stops the process of the machine. A thread of the kernel, which KVM puts into the control group of a
    /// machine, keeps the group from being frozen in version 2. When Firecracker itself has paused a
    /// machine, and not written it to files, its vsock passes nothing on any more: since 1.16 it waits for
    /// the guest to note the end of all connections.
    async fn pause(&self, folder: &BoxFolder, _: &Record) -> Result<bool> {
        let room = WorkDir::find(folder);
        room.mark_paused().map_err(not_written)?;
        let stopped = match suspend::process_of(folder) {
            Ok(process) => process.stop(vmm::STOP_WAIT).await.map_err(|error| Error::failed("pause a machine", error)),
            Err(error) => Err(error),
        };
        if !matches!(stopped, Ok(true)) {
            room.unmark_paused();
        }
        stopped
    }

    async fn resume(&self, folder: &BoxFolder, _: &Record) -> Result<()> {
        let room = WorkDir::find(folder);
        if !room.is_marked_paused() {
            return Ok(());
        }
        suspend::process_of(folder)?.go_on().map_err(|error| Error::failed("resume a machine", error))?;
        machine::go_on(&room, &self.parts.tasks, &suspend::of_disk(folder)?).await?;
        room.unmark_paused();
        Ok(())
    }

    fn is_paused(&self, folder: &BoxFolder, _: &Record) -> bool {
        WorkDir::find(folder).is_marked_paused()
    }
}

#[async_trait]
impl SnapshotWriter for FirecrackerBackend {
    async fn write(&self, folder: &BoxFolder, _: &Record, new: &SnapshotFolder) -> Result<u64> {
        self.keeper().keep(folder, new).await
    }
}

#[async_trait]
impl Suspender for FirecrackerBackend {
    async fn suspend(&self, folder: &BoxFolder, process: Option<&Process>) -> Result<()> {
        self.keeper().suspend(folder, process).await
    }

    fn is_suspended(&self, folder: &BoxFolder) -> bool {
        suspend::is_suspended(folder)
    }

    async fn wake(&self, folder: &BoxFolder, process: Option<&Process>) -> Result<Running> {
        self.keeper().wake(folder, process).await
    }
}

impl FirecrackerBackend {
    fn keeper(&self) -> Keeper<'_> {
        Keeper {
            agent: &self.parts.agent,
            cgroups: &self.cgroups,
            tasks: &self.parts.tasks,
            checks: &self.checks,
            boot_timeout: self.boot_timeout,
        }
    }

    /// Makes an empty drive for what a box changes.
    async fn make_drive(&self, room: &WorkDir, size_mb: u32, id_base: Option<u32>) -> Result<()> {
        let drive = room.file(work_dir::CHANGES);
        self.drives.make(size_mb, &drive).await.map_err(not_written)?;
        work_dir::give(&drive, id_base).map_err(not_written)
    }

    /// Puts the image into the room, and with it what a template has of the machine.
    async fn origin(
        &self,
        plan: &Plan<'_>,
        found: &Found,
        room: &WorkDir,
        boot: &Boot,
        id_base: Option<u32>,
    ) -> Result<Origin> {
        let image = plan.image.map(|image| &image.held);
        let properties = Properties {
            firecracker: &found.version,
            kernel: &found.kernel.digest,
            image: image.map(ImageGuard::digest),
            memory_mb: boot.memory_mb,
            vcpus: boot.vcpus,
            limiter: boot.limiter,
        };
        // A probe finds out if machines boot.
        let has_template = *plan.id != probe_id();
        if has_template && let Some(saved) = self.templates.find(&properties).await {
            match saved.link([work_dir::STATE, work_dir::MEMORY, work_dir::IMAGE], &room.path()) {
                Ok(()) => {
                    let drive_mb = Drives::size_mb(plan.spec.resources.disk_mb);
                    return Ok(Origin::Restore { saved, drive_mb, id_base });
                }
                Err(error) => self.templates.fall_back(&saved, &error),
            }
        }
        let drive = self.image_files.of(image, self.parts.images.as_ref()).await.map_err(not_written)?;
        fs::hard_link(&drive, room.file(work_dir::IMAGE)).map_err(not_written)?;
        let reserve = self.parts.images.as_ref().map_or(0, |images| images.reserve().bytes);
        let making = has_template.then(|| self.templates.begin(&properties, reserve)).flatten();
        Ok(making.map_or(Origin::Boot, |making| {
            let size = (boot.memory_mb, boot.vcpus.into(), Drives::size_mb(plan.spec.resources.disk_mb));
            let mut record = SavedRecord::new(&found.version, properties.image, size);
            record.kernel.clone_from(&found.kernel.release);
            Origin::Template { making, image: drive, record }
        }))
    }

    /// Makes a template of a machine that was written to files, while the machine goes on.
    fn make_template(&self, making: Making, room: &WorkDir, image: PathBuf, record: SavedRecord) {
        // Before the box is made: what the process writes afterwards is not looked at.
        let taken = match self.templates.take(making, room, &image) {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!(%error, "cannot make a template from a machine");
                return;
            }
        };
        let templates = Arc::clone(&self.templates);
        let images = self.parts.images.clone();
        self.parts.tasks.spawn_blocking(move || {
            let finished = templates.finish(taken, record).and_then(|()| templates.prune(images.as_ref()));
            if let Err(error) = finished {
                tracing::warn!(%error, "cannot make a template from a machine");
            }
        });
    }

    fn vmm(
        &self,
        plan: &Plan<'_>,
        found: &Found,
        room: &WorkDir,
        id_base: Option<u32>,
        cgroups: Vec<CgroupDir>,
    ) -> Result<Vmm> {
        let firecracker = utf8(&found.firecracker)?;
        let base = utf8(&plan.folder.path().join(work_dir::JAILS))?;
        let jailer = found.jailer.as_deref().map(utf8).transpose()?;
        let jail = jailer.as_deref().zip(id_base).map(|(jailer, user)| Jail { jailer, user, base: &base });
        let own_pids = jail.is_some();
        Ok(Vmm {
            dir: utf8(plan.folder.path())?,
            workdir: utf8(&room.path())?,
            argv: vmm::argv(&firecracker, jail.as_ref(), plan.id.as_str()),
            console: utf8(&room.console())?,
            cgroups,
            own_pids,
        })
    }
}

fn utf8(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| not_made(format!("{} is not UTF-8", path.display())))
}

/// Returns the parameters of the box in the machine.
fn machine(plan: &Plan<'_>, disk_mb: u32) -> Result<Machine> {
    let run = plan.image.map(|image| image.held.run().clone()).unwrap_or_default();
    let starts = plan.image.is_some_and(|image| image.entrypoint);
    let boot = guest_protocol::Boot {
        deadline_ms: u64::try_from(plan.spec.lifetime.as_millis()).unwrap_or(u64::MAX),
        memory_mb: plan.spec.resources.memory_mb,
        network: Network::Loopback,
        defaults: run.defaults,
        entrypoint: (starts && !run.entrypoint.is_empty()).then_some(run.entrypoint),
        furnish: true,
        trust: plan.spec.trust.clone(),
        ..guest_protocol::Boot::default()
    };
    Ok(Machine {
        boot,
        hostname: plan.id.as_str().to_owned(),
        // Set when it is sent.
        now_ns: 0,
        entropy: suspend::entropy()?,
        pids: plan.spec.resources.pids,
        shm_mb: plan.spec.resources.memory_mb / 2,
        disk_bytes: u64::from(disk_mb) << 20,
    })
}
