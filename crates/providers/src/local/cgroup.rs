//! Control groups of both versions: hard limits for a box.
//!
//! Version 1: `<controller>/<own group>/tidebox/<store>/<sandbox>`. Version 2: the same below the
//! server's own group if it can limit groups below it, else below a scope that systemd gives the
//! server, or as root below the top of the hierarchy. Below the server's own group, a limit on the
//! server holds for its boxes.

pub(crate) mod controller;
pub(crate) mod freezer;
mod manager;
pub(crate) mod memory;
mod parent;
mod place;
pub(crate) mod remedy;
mod tree;
pub(crate) mod view;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::{Resources, SandboxId, StoreId};
use guest_protocol::{CgroupDir, SoftLimits};

use crate::BoxStats;

use controller::Controller;
use memory::MemoryGroup;
pub(crate) use parent::socket_bytes;
use parent::{Parent, SOCKET_LIMIT, limit, retrying};

/// Group for the own processes of a box that holds slots: in version 2 a group with members
/// cannot limit its children.
const OWN_LEAF: &str = "box";
/// Time for which a group may stay busy after its last process has ended: the kernel releases it
/// a little later.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// Parent groups of the boxes of this store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cgroups {
    parents: Vec<Parent>,
    /// Missing limits, a sentence each.
    pub(crate) missing: Vec<String>,
}

impl Cgroups {
    /// Finds the hierarchies, makes the folder of `store` in each, and probes whether a group can
    /// be made and limited there.
    pub(crate) fn open(parent: Option<&str>, store: &StoreId) -> Cgroups {
        let place::Found { parents, refused } = place::find(parent, store);
        let is_refused = !refused.is_empty();
        let mut cgroups = Cgroups { parents, missing: refused };
        if let Some(Parent { dir, .. }) = cgroups.parents.iter().find(|parent| parent.lacks_socket_limit()) {
            cgroups.missing.push(format!(
                "The control group {} has no {SOCKET_LIMIT}, so socket buffers do not count toward a box's limits: use \
                 control groups of version 2, where they count as its memory.",
                dir.display()
            ));
        }
        for controller in Controller::LIMITS {
            // A place that was refused has been explained, with all that it would hold.
            if !is_refused && !cgroups.has(controller) {
                cgroups.missing.push(remedy::of_controller(controller));
            }
        }
        cgroups
    }

    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.parents.iter().any(|parent| parent.has(controller))
    }

    /// Returns whether groups of boxes can be frozen: in version 2 each can.
    pub(crate) fn can_freeze(&self) -> bool {
        self.parents.iter().any(|parent| parent.hierarchy.v2 || parent.has(Controller::Freezer))
    }

    /// Returns whether the memory of boxes can be handed back to the system.
    pub(crate) fn can_reclaim(&self) -> bool {
        let memory = self.parents.iter().find(|parent| parent.has(Controller::Memory));
        memory.is_some_and(|parent| memory::can_reclaim(&parent.dir, parent.hierarchy.v2))
    }

    /// Returns the control groups that a box would have.
    pub(crate) fn of(&self, id: &SandboxId) -> Vec<CgroupDir> {
        self.parents.iter().map(|parent| parent.group_of(id)).collect()
    }

    /// Returns the groups that a slot of a box would have, below those of the box.
    pub(crate) fn of_slot(&self, host: &SandboxId, slot: &SandboxId) -> Vec<CgroupDir> {
        below(self.of(host), slot.as_str())
    }

    /// Makes the groups of a box or a slot and sets their limits.
    pub(crate) fn make(&self, groups: &[CgroupDir], resources: &Resources) -> io::Result<()> {
        for (parent, group) in self.parents.iter().zip(groups) {
            let dir = Path::new(&group.path);
            // Another server may have removed the empty parents, and may do so again.
            retrying(|attempt| {
                if attempt > 0 {
                    parent.make()?;
                }
                tree::make_dir(dir)
            })?;
            for controller in &parent.hierarchy.controllers {
                limit(dir, parent.hierarchy.v2, *controller, resources)?;
            }
        }
        Ok(())
    }

    /// Enables groups below `groups`, and returns those that the first process of the box joins.
    pub(crate) fn divide(&self, groups: Vec<CgroupDir>) -> io::Result<Vec<CgroupDir>> {
        for (Parent { hierarchy, .. }, group) in self.parents.iter().zip(&groups) {
            if hierarchy.v2 {
                tree::enable(Path::new(&group.path), &hierarchy.controllers)?;
            }
        }
        let leaves = below(groups, OWN_LEAF);
        leaves.iter().try_for_each(|leaf| tree::make_dir(Path::new(&leaf.path)))?;
        Ok(leaves)
    }

    /// Returns the file that counts kills by the memory limit of `groups`.
    pub(crate) fn oom_events(&self, groups: &[CgroupDir]) -> Option<String> {
        let (parent, group) = self.parents.iter().zip(groups).find(|(parent, _)| parent.has(Controller::Memory))?;
        let file = if parent.hierarchy.v2 { "memory.events" } else { "memory.oom_control" };
        Some(format!("{}/{file}", group.path))
    }

    /// Returns the limits that no control group holds, zero for the others.
    pub(crate) fn soft(&self, resources: &Resources) -> SoftLimits {
        SoftLimits {
            memory_mb: self.soft_limit(Controller::Memory, resources.memory_mb),
            vcpus: self.soft_limit(Controller::Cpu, resources.vcpus),
            pids: self.soft_limit(Controller::Pids, resources.pids),
        }
    }

    /// Returns `value` if no group holds the limit of `controller`, and zero otherwise.
    fn soft_limit(&self, controller: Controller, value: u32) -> u32 {
        if self.has(controller) { 0 } else { value }
    }

    /// Returns the processor time that each box has used so far, in microseconds, by the name of
    /// its group; empty where it is not counted.
    pub(crate) fn cpu_usages(&self) -> Vec<(String, u64)> {
        let counting = self.parents.iter().find(|parent| parent.counts_cpu());
        let Some(Parent { dir, hierarchy }) = counting else { return Vec::new() };
        let groups = fs::read_dir(dir).into_iter().flatten().flatten();
        let usages = groups.filter_map(|group| {
            let name = group.file_name().into_string().ok()?;
            Some((name, cpu_usage(&group.path(), hierarchy.v2)?))
        });
        usages.collect()
    }

    /// Sets the share of processors that a box gets where boxes compete for them.
    pub(crate) fn weigh(&self, group: &str, weight: CpuWeight) -> io::Result<()> {
        let Some(Parent { dir, hierarchy }) = self.holder_of_cpu() else { return Ok(()) };
        let group = dir.join(group);
        match fs::write(group.join("cpu.idle"), if weight == CpuWeight::Low { "1" } else { "0" }) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let scale = WeightScale::of(hierarchy.v2);
        scale.set(&group, if weight == CpuWeight::Low { scale.low } else { scale.usual })
    }

    /// Gives the groups above the boxes the weight of `boxes` groups, so that each of the boxes that
    /// compute gets as much as a container or a service beside them does.
    pub(crate) fn weigh_all(&self, boxes: u64) -> io::Result<()> {
        let Some(Parent { dir, hierarchy }) = self.holder_of_cpu() else { return Ok(()) };
        let scale = WeightScale::of(hierarchy.v2);
        scale.set(dir, scale.sum(boxes.max(1)))?;
        let Some(all_stores) = dir.parent() else { return Ok(()) };
        // Servers of other stores have groups below it too.
        let stores = fs::read_dir(all_stores)?.flatten().filter_map(|store| scale.get(&store.path()));
        let weight = stores.fold(0, u64::saturating_add).clamp(scale.usual, scale.most);
        scale.set(all_stores, weight)?;
        if hierarchy.v2 {
            tree::server_leaf(&hierarchy.base).map_or(Ok(()), |server| scale.set(&server, weight))?;
        }
        Ok(())
    }

    fn holder_of_cpu(&self) -> Option<&Parent> {
        self.parents.iter().find(|parent| parent.has(Controller::Cpu))
    }

    /// Removes the store's folders if no box is left in them.
    pub(crate) fn tidy(&self) {
        for parent in &self.parents {
            for dir in parent.dir.ancestors().take(2) {
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

/// Weight of a box where boxes compete for processors. The usual one is the kernel's
/// default. With the low one a box gives way as soon as another wants a processor, and
/// gets a 340th of what that gets; on Linux before 5.15 a thirtieth, at its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuWeight {
    /// The weight of a box that uses no more than its share.
    Usual,
    /// The weight of a box that uses more.
    Low,
}

/// File and values of the weights of groups, which differ by version.
#[derive(Debug, Clone, Copy)]
struct WeightScale {
    file: &'static str,
    low: u64,
    usual: u64,
    most: u64,
}

impl WeightScale {
    fn of(v2: bool) -> WeightScale {
        if v2 {
            WeightScale { file: "cpu.weight", low: 3, usual: 100, most: 10_000 }
        } else {
            WeightScale { file: "cpu.shares", low: 32, usual: 1024, most: 262_144 }
        }
    }

    /// Returns the weight of as many groups together.
    fn sum(self, groups: u64) -> u64 {
        self.usual.saturating_mul(groups).min(self.most)
    }

    fn get(self, group: &Path) -> Option<u64> {
        read_number(&group.join(self.file))
    }

    fn set(self, group: &Path, weight: u64) -> io::Result<()> {
        fs::write(group.join(self.file), weight.to_string())
    }
}

/// Reads the processor time used in a group, in microseconds.
fn cpu_usage(group: &Path, v2: bool) -> Option<u64> {
    if v2 {
        let stat = fs::read_to_string(group.join("cpu.stat")).ok()?;
        return stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok());
    }
    Some(read_number(&group.join("cpuacct.usage"))? / 1000)
}

/// Reads a file of a group that holds one number; `None` if there is none.
fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Reads the counters of the groups of a box. A counter is absent where no group has it.
pub(crate) fn stats(groups: &[CgroupDir]) -> BoxStats {
    let mut stats = BoxStats::default();
    for CgroupDir { path, v2 } in groups {
        let dir = Path::new(path);
        let [now, peak, unused] = if *v2 {
            ["memory.current", "memory.peak", "inactive_file "]
        } else {
            ["memory.usage_in_bytes", "memory.max_usage_in_bytes", "total_inactive_file "]
        };
        if let Some(bytes) = read_number(&dir.join(now)) {
            let detail = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
            let unused = detail.lines().find_map(|line| line.strip_prefix(unused)?.trim().parse().ok()).unwrap_or(0);
            stats.memory_bytes = Some(bytes.saturating_sub(unused));
            stats.memory_peak_bytes = read_number(&dir.join(peak));
        }
        stats.cpu = stats.cpu.or_else(|| cpu_usage(dir, *v2).map(Duration::from_micros));
        stats.processes = stats.processes.or_else(|| read_number(&dir.join("pids.current")));
    }
    stats
}

fn below(groups: Vec<CgroupDir>, name: &str) -> Vec<CgroupDir> {
    groups.into_iter().map(|group| CgroupDir { path: format!("{}/{name}", group.path), ..group }).collect()
}

/// Returns a group and those below it, these first. A box that holds slots has one level of them.
fn with_inner(group: &CgroupDir) -> Vec<PathBuf> {
    let inner = fs::read_dir(&group.path).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> =
        inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect();
    all.push(group.path.clone().into());
    all
}

/// Bounds the socket buffers of a process's memory group of version 1, which its creator left
/// unbounded. Does nothing where no group of version 1 counts memory.
pub(crate) fn bound_sockets(pid: i32, memory_mb: u32) -> io::Result<()> {
    match MemoryGroup::of_process(pid)? {
        Some(group) if group.is_v2() => Ok(()),
        Some(group) => fs::write(group.dir().join(SOCKET_LIMIT), socket_bytes(memory_mb).to_string()),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Kills all members of the groups of a box: for a box whose first process was never recorded, or
/// does not end.
pub(crate) fn kill_members(cgroups: &[CgroupDir]) {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    for dir in cgroups.iter().flat_map(with_inner) {
        for line in tree::members(&dir).unwrap_or_default().lines() {
            let Some(pid) = line.parse().ok().and_then(Pid::from_raw) else { continue };
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // The descriptor holds the process now; if its number is still listed, it is a
            // member.
            if tree::members(&dir).unwrap_or_default().lines().any(|again| again == line) {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
    }
}

/// Removes the groups of a box, waiting until the kernel releases them.
pub(crate) async fn remove(cgroups: &[CgroupDir]) -> io::Result<()> {
    let deadline = tokio::time::Instant::now() + BUSY_MAX;
    let mut pause = Duration::from_micros(200);
    for dir in cgroups.iter().flat_map(with_inner) {
        loop {
            match fs::remove_dir(&dir) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if tokio::time::Instant::now() >= deadline => return Err(error),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::parent::SOCKET_BYTES_MIN;
    use super::tree::Hierarchy;
    use super::*;

    fn made(v2: bool, files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|file| fs::write(dir.path().join(file), "").unwrap());
        limit(dir.path(), v2, Controller::Memory, &Resources { memory_mb: 512, vcpus: 1, disk_mb: 0, pids: 16 })
            .unwrap();
        dir
    }

    #[test]
    fn the_counters_of_both_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |group: &str, files: &[(&str, &str)]| {
            let dir = dir.path().join(group);
            fs::create_dir(&dir).unwrap();
            files.iter().for_each(|(file, text)| fs::write(dir.join(file), text).unwrap());
            dir.display().to_string()
        };
        let stat = "cache 7\ninactive_file 9\nactive_file 1\ntotal_inactive_file 100\n";
        let memory =
            [("memory.usage_in_bytes", "1000\n"), ("memory.max_usage_in_bytes", "5000\n"), ("memory.stat", stat)];
        let first = [
            write("cpu", &[("cpuacct.usage", "3000000000\n")]),
            write("memory", &memory),
            write("pids", &[("pids.current", "4\n"), ("pids.max", "9\n")]),
        ];
        let of = |v2| move |path: String| CgroupDir { path, v2 };
        let cpu = Some(Duration::from_secs(3));
        let disk_bytes = None;
        let egress = None;
        let first = stats(&first.map(of(false)));
        let memory = (Some(900), Some(5000));
        let (memory_bytes, memory_peak_bytes) = memory;
        let expected = BoxStats { cpu, memory_bytes, memory_peak_bytes, processes: Some(4), disk_bytes, egress };
        assert_eq!(first, expected);
        let files = [
            ("cpu.stat", "usage_usec 3000000\nuser_usec 1\n"),
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 5\ninactive_file 100\n"),
            ("pids.current", "4\n"),
        ];
        let second = write("unified", &files);
        // Kernels before 5.19 keep no peak.
        assert_eq!(stats(&[of(true)(second.clone())]), BoxStats { memory_peak_bytes: None, ..expected });
        fs::write(Path::new(&second).join("memory.peak"), "5000\n").unwrap();
        assert_eq!(stats(&[of(true)(second)]), expected);
        assert_eq!(stats(&[of(true)("/nowhere".to_owned())]), BoxStats::default());
    }

    #[test]
    fn the_groups_above_boxes_weigh_as_much_as_the_boxes_that_compute() {
        for (v2, file, weighs) in [(false, "cpu.shares", ["3072", "5120"]), (true, "cpu.weight", ["300", "500"])] {
            let base = tempfile::tempdir().unwrap();
            let dir = base.path().join("tidebox/store");
            for group in ["tidebox-server", "tidebox/store", "tidebox/other"] {
                fs::create_dir_all(base.path().join(group)).unwrap();
            }
            let scale = WeightScale::of(v2);
            scale.set(&base.path().join("tidebox/other"), scale.sum(2)).unwrap();
            let hierarchy = Hierarchy { base: base.path().to_owned(), v2, controllers: vec![Controller::Cpu] };
            let parents = vec![Parent { dir, hierarchy }];
            let cgroups = Cgroups { parents, ..Cgroups::default() };
            cgroups.weigh_all(3).unwrap();
            let read = |group: &str| fs::read_to_string(base.path().join(group).join(file)).unwrap();
            assert_eq!([read("tidebox/store"), read("tidebox")], weighs);
            if v2 {
                assert_eq!(read("tidebox-server"), "500", "boxes take no processors from the server");
            }
            cgroups.weigh_all(1_000_000).unwrap();
            assert_eq!(read("tidebox/store"), scale.most.to_string());
            cgroups.weigh_all(0).unwrap();
            assert_eq!(read("tidebox/store"), scale.usual.to_string());
        }
    }

    #[test]
    fn buffers_of_sockets_have_a_bound_in_version_1_and_are_memory_in_version_2() {
        let first = made(false, &["memory.limit_in_bytes", SOCKET_LIMIT]);
        assert_eq!(fs::read_to_string(first.path().join(SOCKET_LIMIT)).unwrap(), (64 << 20).to_string());
        assert_eq!(socket_bytes(64), SOCKET_BYTES_MIN);
        let second = made(true, &["memory.max"]);
        assert_eq!(fs::read_to_string(second.path().join("memory.max")).unwrap(), (512 << 20).to_string());
        assert!(!second.path().join(SOCKET_LIMIT).exists());
    }
}
