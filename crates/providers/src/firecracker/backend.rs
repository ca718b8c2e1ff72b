//! Boxes that are virtual machines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::Resources;
use firecracker::requests::State;
use guest_protocol::{CgroupDir, MACHINE_ENTROPY_BYTES, Machine, Network, Vmm};
use parking_lot::RwLock;
use rand::TryRng as _;
use rustix::time::{ClockId, clock_gettime};

use super::console::Console;
use super::drives::Drives;
use super::host::{self, Found, Machines, Programs};
use super::image_files::ImageFiles;
use super::machine::{self, Boot};
use super::room::{self, Room};
use super::vmm::{self, Jail};
use crate::agent::AgentGuest;
use crate::local::agent_socket::Running;
use crate::local::backend::Backend;
use crate::local::builder::try_box;
use crate::local::cgroup::{self, Cgroups};
use crate::local::fault::{not_made, not_written};
use crate::local::folder::BoxFolder;
use crate::local::host_rootfs::HOSTNAME;
use crate::local::launcher::failed;
use crate::local::parts::Parts;
use crate::local::plan::BoxPlan;
use crate::local::probe::Probe;
use crate::local::process::Process;
use crate::local::record::Record;
use crate::{Error, Facts, Result, Spec};

/// Memory of the process besides that of its guest, in mebibytes: Firecracker itself, the buffers of its
/// devices, and what the kernel keeps for both.
const OWN_MEMORY_MB: u32 = 64;
/// Threads of the process besides those of the guest's processors.
const OWN_THREADS: u32 = 16;
/// Least memory of a machine, that of a probe: the kernels of distributions, with their first files, take
/// half of it to boot.
const MEMORY_MB_MIN: u32 = host::PROBE_MEMORY_MB;
/// Most processors of a machine.
const VCPUS_MAX: u32 = 32;
/// Most mebibytes of `/dev/shm`, as in container engines; less if the box has little memory.
const SHM_MB_MAX: u32 = 64;
/// Limit for a killed process to end before everything in its control groups is killed.
const ALONE_WAIT: Duration = Duration::from_secs(1);

type Plan<'a> = BoxPlan<'a, Machines>;

/// Start of a machine whose files are in place.
#[derive(Debug)]
pub struct Order {
    room: Room,
    vmm: Vmm,
    boot: Boot,
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
    const SLOW_PROBE: Option<&'static str> = None;
    const DEFAULT_IMAGE: &'static str = "debian:stable-slim";

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
                "memory_mb is {memory_mb}, with which no machine boots; the least on the provider firecracker is \
                 {MEMORY_MB_MIN}"
            )));
        }
        if vcpus > VCPUS_MAX {
            return Err(Error::Invalid(format!(
                "vcpus is {vcpus}; the most on the provider firecracker is {VCPUS_MAX}"
            )));
        }
        Ok(())
    }

    fn can_pause(&self) -> bool {
        true
    }

    /// Has Firecracker stop the machine's processors. A thread of the kernel, which KVM puts into the
    /// control group of a machine, keeps the group from being frozen in version 2.
    async fn pause(&self, folder: &BoxFolder, _: &Record) -> Result<bool> {
        let room = Room::find(folder);
        room.mark_paused().map_err(not_written)?;
        let paused = machine::change_state(&room, State::Paused, &self.parts.tasks).await;
        if paused.is_err() {
            room.unmark_paused();
        }
        paused.map(|()| true)
    }

    async fn resume(&self, folder: &BoxFolder, _: &Record) -> Result<()> {
        let room = Room::find(folder);
        machine::change_state(&room, State::Resumed, &self.parts.tasks).await?;
        room.unmark_paused();
        Ok(())
    }

    fn is_paused(&self, folder: &BoxFolder, _: &Record) -> bool {
        Room::find(folder).is_marked_paused()
    }

    /// Returns the drive with the changes: the other files belong to all boxes of the image.
    fn own_files(&self, folder: &BoxFolder) -> PathBuf {
        Room::find(folder).file(room::CHANGES)
    }

    /// Returns false: what a box deletes stays in its drive until it ends.
    fn holds_deleted(&self, _: &BoxFolder, _: Option<Machines>) -> bool {
        false
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
        let image = plan.image.map(|image| &image.held);
        let image = self.image_files.of(image, self.parts.images.as_ref()).await.map_err(not_written)?;
        let program = found.firecracker.file_name().filter(|_| self.jailed);
        let room = Room::new(&plan.folder, program);
        let size_mb = Drives::size_mb(plan.resources.disk_mb);
        room.make(id_base).map_err(not_written)?;
        self.drives.make(size_mb, &room.file(room::CHANGES)).await.map_err(not_written)?;
        room::give(&room.file(room::CHANGES), id_base).map_err(not_written)?;
        for (file, name) in
            [(&found.kernel.kernel, room::KERNEL), (&found.kernel.initrd, room::INITRD), (&image, room::IMAGE)]
        {
            fs::hard_link(file, room.file(name)).map_err(not_written)?;
        }
        let groups = self.cgroups(plan);
        let own = Resources {
            memory_mb: plan.resources.memory_mb.saturating_add(OWN_MEMORY_MB),
            pids: plan.resources.vcpus.saturating_add(OWN_THREADS),
            ..*plan.resources
        };
        self.cgroups.make(&groups, &own).map_err(not_made)?;
        Ok(Order {
            vmm: self.vmm(plan, &found, &room, id_base, groups)?,
            room,
            boot: Boot {
                vcpus: u8::try_from(plan.resources.vcpus.clamp(1, VCPUS_MAX)).unwrap_or(1),
                memory_mb: plan.resources.memory_mb,
                limiter: self.drives.limiter(),
                wait: self.boot_timeout,
                machine: machine(plan, size_mb)?,
            },
        })
    }

    async fn launch(&self, folder: &BoxFolder, (): (), order: Order) -> Result<Running> {
        let console = Console::open(&order.room).map_err(not_made)?;
        let started = vmm::start(&self.parts.agent, &order.vmm).await.map_err(failed)?;
        let Some((pid, begun)) = folder.pid() else { return Err(not_made("no process was recorded")) };
        let process = Process::find(pid, begun).map_err(not_made)?;
        let Some(process) = process else { return Err(ended(&"the process has ended", &console)) };
        started.executed().await.map_err(failed)?;
        let booted = machine::boot(&order.room, &process, &order.boot, &self.parts.tasks).await;
        let guest = booted.map_err(|error| ended(&error, &console))?;
        Ok(Running { process, guest, shares_devices: false, launched: std::time::Instant::now() })
    }

    async fn dial(&self, folder: &BoxFolder) -> Result<AgentGuest> {
        machine::dial(&Room::find(folder)).await
    }

    async fn kill(&self, _: &BoxFolder, record: &Record, process: Option<&Process>) -> io::Result<()> {
        if let Some(process) = process {
            process.kill()?;
            if process.ended_within(ALONE_WAIT).await {
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

/// Returns the error of a machine that could not be started, with the last words of its console for the
/// log.
fn ended(cause: &dyn std::fmt::Display, console: &Console) -> Error {
    let words = console.last_words();
    if words.is_empty() { not_made(cause.to_string()) } else { not_made(format!("{cause}; its console: {words}")) }
}

impl FirecrackerBackend {
    fn vmm(
        &self,
        plan: &Plan<'_>,
        found: &Found,
        room: &Room,
        id_base: Option<u32>,
        cgroups: Vec<CgroupDir>,
    ) -> Result<Vmm> {
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| not_made(format!("{} is no UTF-8", path.display())))
        };
        let (firecracker, base) = (text(&found.firecracker)?, text(&plan.folder.path().join(room::JAILS))?);
        let jailer = found.jailer.as_deref().map(text).transpose()?;
        let jail = jailer.as_deref().zip(id_base).map(|(jailer, user)| Jail { jailer, user, base: &base });
        let own_pids = jail.is_some();
        Ok(Vmm {
            dir: text(plan.folder.path())?,
            workdir: text(&room.path())?,
            argv: vmm::argv(&firecracker, jail.as_ref(), plan.id.as_str()),
            console: text(&room.console())?,
            cgroups,
            own_pids,
        })
    }
}

/// Returns the parameters of the box in the machine.
fn machine(plan: &Plan<'_>, disk_mb: u32) -> Result<Machine> {
    let run = plan.image.map(|image| image.held.run().clone()).unwrap_or_default();
    let starts = plan.image.is_some_and(|image| image.entrypoint);
    let boot = guest_protocol::Boot {
        deadline_ms: u64::try_from(plan.lifetime.as_millis()).unwrap_or(u64::MAX),
        memory_mb: plan.resources.memory_mb,
        network: Network::Loopback,
        defaults: run.defaults,
        entrypoint: (starts && !run.entrypoint.is_empty()).then_some(run.entrypoint),
        furnish: true,
        trust: plan.trust.map(str::to_owned),
        ..guest_protocol::Boot::default()
    };
    let mut entropy = [0; MACHINE_ENTROPY_BYTES];
    rand::rngs::SysRng.try_fill_bytes(&mut entropy).map_err(not_made)?;
    // As it is: the clock of the guest is to be that of this host.
    let now = clock_gettime(ClockId::Realtime);
    Ok(Machine {
        boot,
        hostname: HOSTNAME.to_owned(),
        now_ns: u64::try_from(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
            .map_err(not_made)?,
        entropy: entropy.iter().map(|byte| format!("{byte:02x}")).collect(),
        pids: plan.resources.pids,
        shm_mb: (plan.resources.memory_mb / 2).min(SHM_MB_MAX),
        disk_bytes: u64::from(disk_mb) << 20,
    })
}
