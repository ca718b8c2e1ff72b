//! Memory of a box that is handed back to the system, by the control group that counts it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use guest_protocol::CgroupDir;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::controller::Controller;
use super::{remedy, tree};
use crate::local::agent_file::AgentFile;
use crate::{Error, Reclaimed, ReclaimedBy, Result};

/// Name of a reclaim in errors.
const RECLAIM: &str = "reclaim the memory of a box";
/// Time for the kernel to find what it can give up. It frees a gigabyte in less than a second unless
/// that has to be written to a slow disk first; what it has freed by then stays free.
const RECLAIM_WAIT: Duration = Duration::from_secs(10);
/// Time for a reclaim to end after it was given up. The kernel looks between two pages.
const END_WAIT: Duration = Duration::from_secs(2);
/// Number of reclaims at once. Each keeps a processor busy, or the disk.
const RECLAIMS_MAX: usize = 2;
/// Places of the reclaims of this process.
static PLACES: Semaphore = Semaphore::const_new(RECLAIMS_MAX);

/// Control group that counts the memory of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryGroup {
    dir: PathBuf,
    v2: bool,
}

impl MemoryGroup {
    /// Returns the one that counts memory among the groups of a box; `None` if none does.
    pub(crate) fn of(groups: &[CgroupDir]) -> Option<MemoryGroup> {
        let mut all = groups.iter().map(|CgroupDir { path, v2 }| MemoryGroup { dir: path.into(), v2: *v2 });
        all.find(|group| group.dir.join(group.counter()).exists())
    }

    /// Returns the one that counts the memory of a process; `None` if it cannot be seen here.
    pub(crate) fn of_process(pid: i32) -> io::Result<Option<MemoryGroup>> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let found = groups.lines().filter_map(named).find_map(|(path, v2)| {
            let mut all = tree::hierarchies(Some(path)).into_iter();
            let hierarchy = all.find(|it| it.v2 == v2 && it.controllers.contains(&Controller::Memory))?;
            Some(MemoryGroup { dir: hierarchy.base, v2 })
        });
        // A path that is seen from another root leads to another group, or to none.
        Ok(found.filter(|group| group.has_member(pid)))
    }

    fn has_member(&self, pid: i32) -> bool {
        let members = tree::members(&self.dir).unwrap_or_default();
        members.lines().any(|member| member == pid.to_string())
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn is_v2(&self) -> bool {
        self.v2
    }

    /// Checks that the kernel has a file to reclaim the memory of the group, and that this process
    /// may write to it.
    pub(crate) fn check_reclaim(&self) -> Result<()> {
        let file = self.dir.join(self.means().as_str());
        if !self.dir.exists() {
            return Err(Error::Gone);
        }
        if !file.exists() {
            return Err(Error::NotSupported(
                "the kernel cannot reclaim the memory of a box here; that needs Linux 5.19 or control groups of \
                 version 1"
                    .to_owned(),
            ));
        }
        accessat(CWD, file, Access::WRITE_OK, AtFlags::EACCESS).map_err(|_| {
            Error::NotSupported(format!(
                "the server may not reclaim the memory of a box here: {}",
                remedy::of_missing_group()
            ))
        })
    }

    /// Hands memory of the group back to the system, with a process of `agent` that ends when this
    /// is dropped.
    pub(crate) async fn reclaim(&self, agent: &AgentFile) -> Result<Reclaimed> {
        self.check_reclaim()?;
        let deadline = Instant::now() + RECLAIM_WAIT;
        let place = timeout_at(deadline, PLACES.acquire())
            .await
            .map_err(|_| Error::Unavailable("the memory of other boxes is being reclaimed; try again".to_owned()))?;
        let _place = place.map_err(|error| Error::failed(RECLAIM, error))?;
        let memory_before_bytes = self.used().map_err(not_reclaimed)?;
        let version = if self.v2 { "v2" } else { "v1" };
        let mut command = Command::new(agent.path());
        command.args(["reclaim", version]).arg(&self.dir).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(not_reclaimed)?;
        // Dropped before the child, which then ends as it does at the deadline.
        let stdin = child.stdin.take();
        let status = match timeout_at(deadline, child.wait()).await {
            Ok(status) => Some(status.map_err(not_reclaimed)?),
            Err(_) => {
                drop(stdin);
                let _ = timeout(END_WAIT, child.wait()).await;
                None
            }
        };
        if let Some(refused) = status.filter(|status| !status.success()) {
            return Err(not_reclaimed(io::Error::from_raw_os_error(refused.code().unwrap_or_default())));
        }
        let memory_after_bytes = self.used().map_err(not_reclaimed)?;
        Ok(Reclaimed { memory_before_bytes, memory_after_bytes, by: self.means() })
    }

    fn means(&self) -> ReclaimedBy {
        if self.v2 { ReclaimedBy::MemoryReclaim } else { ReclaimedBy::ForceEmpty }
    }

    fn counter(&self) -> &'static str {
        if self.v2 { "memory.current" } else { "memory.usage_in_bytes" }
    }

    /// Reads the memory that counts to the limit of the group: also that of files.
    fn used(&self) -> io::Result<u64> {
        fs::read_to_string(self.dir.join(self.counter()))?.trim().parse().map_err(io::Error::other)
    }
}

/// Returns the error for a failed reclaim; [`Error::Gone`] if the group is not there.
fn not_reclaimed(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound { Error::Gone } else { Error::failed(RECLAIM, error) }
}

/// Returns whether groups below `dir` have a file to reclaim their memory.
pub(super) fn can_reclaim(dir: &Path, v2: bool) -> bool {
    let means = if v2 { ReclaimedBy::MemoryReclaim } else { ReclaimedBy::ForceEmpty };
    dir.join(means.as_str()).exists()
}

/// Returns whether the kernel of this host can reclaim the memory of a group.
pub(crate) fn host_can_reclaim() -> bool {
    let all = tree::hierarchies(None);
    let memory = all.iter().find(|hierarchy| hierarchy.controllers.contains(&Controller::Memory));
    memory.is_some_and(|hierarchy| can_reclaim(&hierarchy.base, hierarchy.v2))
}

/// Returns the path of a line of `/proc/PID/cgroup` for a group that may count memory, and whether it
/// is of version 2.
fn named(line: &str) -> Option<(&str, bool)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let controllers = parts.next()?;
    let path = parts.next()?;
    let is_memory = tree::lists(controllers, Controller::Memory.as_str());
    (controllers.is_empty() || is_memory).then_some((path, controllers.is_empty()))
}

#[cfg(test)]
mod test {
    use super::*;

    fn group(v2: bool, files: &[(&str, &str)]) -> (tempfile::TempDir, MemoryGroup) {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(file, text)| fs::write(dir.path().join(file), text).unwrap());
        let other = CgroupDir { path: "/nowhere".to_owned(), v2 };
        let group = MemoryGroup::of(&[other, CgroupDir { path: dir.path().display().to_string(), v2 }]).unwrap();
        (dir, group)
    }

    #[tokio::test]
    async fn both_versions_are_asked_in_their_own_words() {
        let agent = AgentFile::sealed().unwrap();
        let (dir, first) = group(false, &[("memory.usage_in_bytes", "1000\n"), ("memory.force_empty", "")]);
        let expected = Reclaimed { memory_before_bytes: 1000, memory_after_bytes: 1000, by: ReclaimedBy::ForceEmpty };
        assert_eq!(first.reclaim(&agent).await.unwrap(), expected);
        assert_eq!(fs::read_to_string(dir.path().join("memory.force_empty")).unwrap(), "0");
        let (dir, second) = group(true, &[("memory.current", "1000\n"), ("memory.reclaim", "")]);
        let expected = Reclaimed { by: ReclaimedBy::MemoryReclaim, ..expected };
        assert_eq!(second.reclaim(&agent).await.unwrap(), expected);
        assert_eq!(fs::read_to_string(dir.path().join("memory.reclaim")).unwrap(), "1000");
    }

    #[tokio::test]
    async fn a_kernel_without_the_file_is_named_and_a_group_that_is_gone_is_gone() {
        let agent = AgentFile::sealed().unwrap();
        let (dir, old) = group(true, &[("memory.current", "1000\n")]);
        assert!(matches!(old.reclaim(&agent).await, Err(Error::NotSupported(text)) if text.contains("5.19")));
        drop(dir);
        assert!(matches!(old.reclaim(&agent).await, Err(Error::Gone)));
        assert_eq!(MemoryGroup::of(&[]), None);
    }

    /// Returns the pids of the processes that this one has started for `dir`.
    fn processes_for(dir: &Path) -> Vec<String> {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let is_for = |pid: &String| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&arguments).contains(&dir.display().to_string())
        };
        all.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_for).collect()
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let wait = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    #[tokio::test]
    async fn a_reclaim_that_is_given_up_leaves_no_process() {
        let agent = AgentFile::sealed().unwrap();
        let (dir, group) = group(true, &[("memory.current", "1000\n")]);
        // A pipe that no process reads keeps its writer, as a kernel does that finds nothing.
        let fifo = dir.path().join("memory.reclaim");
        rustix::fs::mkfifoat(CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        let mut asked = Box::pin(group.reclaim(&agent));
        tokio::select! {
            reclaimed = &mut asked => panic!("{reclaimed:?}"),
            () = until("its process starts", || !processes_for(dir.path()).is_empty()) => {}
        }
        drop(asked);
        until("its process ends", || processes_for(dir.path()).is_empty()).await;
    }

    #[tokio::test]
    async fn a_reclaim_that_takes_too_long_ends_with_the_figures() {
        let agent = AgentFile::sealed().unwrap();
        let (dir, group) = group(true, &[("memory.current", "1000\n")]);
        let fifo = dir.path().join("memory.reclaim");
        rustix::fs::mkfifoat(CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        let begun = Instant::now();
        let reclaimed = group.reclaim(&agent).await.unwrap();
        assert_eq!((reclaimed.memory_before_bytes, reclaimed.memory_after_bytes), (1000, 1000));
        assert!(begun.elapsed() >= RECLAIM_WAIT && processes_for(dir.path()).is_empty());
    }

    #[test]
    fn the_group_of_a_process_is_found_in_either_version() {
        assert_eq!(named("4:memory:/a/b"), Some(("/a/b", false)));
        assert_eq!(named("2:cpu,memory:/a:b"), Some(("/a:b", false)));
        assert_eq!(named("0::/c"), Some(("/c", true)));
        assert_eq!(named("3:cpu,cpuacct:/"), None);
        assert_eq!(named("nonsense"), None);
        let own = MemoryGroup::of_process(std::process::id().cast_signed()).unwrap();
        assert!(own.is_none_or(|group| group.used().unwrap() > 0));
    }
}
