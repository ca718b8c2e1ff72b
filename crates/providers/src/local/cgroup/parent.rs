//! Group of a store in one hierarchy, and the limits of groups below it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use domain::{Resources, SandboxId, StoreId};
use guest_protocol::CgroupDir;
use rustix::io::Errno;

use super::controller::Controller;
use super::tree::{self, Hierarchy};

/// Period of processor limits, in microseconds; the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Divisor of a box's memory that gives the limit on its TCP and UDP buffers in version 1. There
/// they count to no memory limit, and this one comes on top of it. Streams over the loopback
/// reach two thirds of their speed with 16 MiB, and a sixth of it with 4.
const SOCKET_SHARE: u64 = 8;
pub(super) const SOCKET_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Version 1 file of the limit on socket buffers.
pub(super) const SOCKET_LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";

/// Group of a store in one hierarchy, below which the groups of its boxes lie.
#[derive(Debug, Clone)]
pub(super) struct Parent {
    pub(super) dir: PathBuf,
    pub(super) hierarchy: Hierarchy,
}

impl Parent {
    pub(super) fn has(&self, controller: Controller) -> bool {
        self.hierarchy.controllers.contains(&controller)
    }

    /// Returns whether the group counts memory and cannot limit the buffers of sockets.
    pub(super) fn lacks_socket_limit(&self) -> bool {
        !self.hierarchy.v2 && self.has(Controller::Memory) && !self.dir.join(SOCKET_LIMIT).exists()
    }

    /// Returns whether groups below it count processor time.
    pub(super) fn counts_cpu(&self) -> bool {
        self.has(if self.hierarchy.v2 { Controller::Cpu } else { Controller::CpuUsage })
    }

    /// Returns the group that the box `id` would have.
    pub(super) fn group_of(&self, id: &SandboxId) -> CgroupDir {
        CgroupDir { path: self.dir.join(id.as_str()).display().to_string(), v2: self.hierarchy.v2 }
    }

    /// Makes the group, with limits for those below it.
    pub(super) fn make(&self) -> io::Result<()> {
        let Hierarchy { base, v2, controllers } = &self.hierarchy;
        if *v2 {
            // First, so that a group that cannot be divided stays as it is.
            tree::delegate(base, controllers)?;
        }
        tree::make_dir_and_parents(&self.dir)?;
        if *v2 {
            // From the top: a group can pass on only what it has got.
            let mut inner = self.dir.parent().into_iter().chain([self.dir.as_path()]);
            inner.try_for_each(|dir| tree::enable(dir, controllers))?;
        }
        Ok(())
    }
}

/// Runs `make` again, with the number of its attempt, while a group that it needs is not there:
/// another server removes empty parents in between.
pub(super) fn retrying(mut make: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
    const ATTEMPTS_MAX: usize = 20;
    let mut outcome = Ok(());
    for attempt in 0..ATTEMPTS_MAX {
        outcome = make(attempt);
        if !outcome.as_ref().is_err_and(is_gone) {
            break;
        }
    }
    outcome
}

/// Returns whether a group is not there, or went while one of its files was open.
fn is_gone(error: &io::Error) -> bool {
    [Some(Errno::NOENT), Some(Errno::NODEV)].contains(&Errno::from_io_error(error))
}

/// Makes the group of a store, and probes whether a group can be made and limited there.
pub(super) fn prepare(hierarchy: &Hierarchy, store: &StoreId) -> io::Result<Parent> {
    let dir = hierarchy.base.join("tidebox").join(store.as_str());
    let parent = Parent { dir, hierarchy: hierarchy.clone() };
    let probe = parent.dir.join("probe");
    retrying(|_| {
        parent.make()?;
        match tree::make_dir(&probe) {
            // Left by a server that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    })?;
    let size = Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 16 };
    let works = hierarchy.controllers.iter().try_for_each(|controller| limit(&probe, hierarchy.v2, *controller, &size));
    fs::remove_dir(&probe)?;
    works.map(|()| parent)
}

/// Sets the limit of one controller on a group.
pub(super) fn limit(dir: &Path, v2: bool, controller: Controller, resources: &Resources) -> io::Result<()> {
    let bytes = u64::from(resources.memory_mb) * 1024 * 1024;
    let quota_us = u64::from(resources.vcpus) * CPU_PERIOD_US;
    match (controller, v2) {
        (Controller::Memory, false) => {
            fs::write(dir.join("memory.limit_in_bytes"), bytes.to_string())?;
            write_if_known(&dir.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
            write_if_known(&dir.join(SOCKET_LIMIT), &socket_bytes(resources.memory_mb).to_string())
        }
        (Controller::Memory, true) => {
            fs::write(dir.join("memory.max"), bytes.to_string())?;
            write_if_known(&dir.join("memory.swap.max"), "0")
        }
        (Controller::Cpu, false) => {
            fs::write(dir.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
            fs::write(dir.join("cpu.cfs_quota_us"), quota_us.to_string())
        }
        (Controller::Cpu, true) => fs::write(dir.join("cpu.max"), format!("{quota_us} {CPU_PERIOD_US}")),
        (Controller::Pids, _) => fs::write(dir.join("pids.max"), resources.pids.to_string()),
        (Controller::CpuUsage | Controller::Freezer, _) => Ok(()),
    }
}

/// Writes a limit if the kernel has its file, which kernels without swap, or without its accounting,
/// lack.
fn write_if_known(file: &Path, value: &str) -> io::Result<()> {
    match fs::write(file, value) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(()),
        outcome => outcome,
    }
}

/// Returns the most bytes that the buffers of a box's sockets may take in version 1.
pub(crate) fn socket_bytes(memory_mb: u32) -> u64 {
    (u64::from(memory_mb) * 1024 * 1024 / SOCKET_SHARE).max(SOCKET_BYTES_MIN)
}
