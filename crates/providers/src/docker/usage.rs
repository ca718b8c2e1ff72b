//! Disk and kernel usage of a container on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::models::{ContainerInspectResponse, ContainerStatsResponse};
use bollard::query_parameters::{InspectContainerOptionsBuilder, StatsOptionsBuilder};
use futures_util::StreamExt;

use super::direct::{self, FirstProcess};
use super::fault::{self, LOOK_WAIT, within};
use crate::agent::AgentGuest;
use crate::local::kernel::kernel_usage;
use crate::local::usage::usage;
use crate::{BoxStats, DiskUsage, Guest, KernelShare, Result};

/// Files that the Engine keeps for each container beside its root, and that the container may
/// write: no limit on its root counts them.
const OF_THE_ENGINE: [&str; 3] = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];

/// Measures the container of a box on an Engine of this machine: its root, the volumes that its
/// image names, and the files that the Engine keeps for it. The guest is asked where the server
/// cannot see these itself.
pub(super) async fn measure(
    client: &Client,
    name: &str,
    guest: impl Future<Output = Result<Arc<AgentGuest>>>,
) -> Option<DiskUsage> {
    let inspected = within(LOOK_WAIT, client.inspect_container(name, None)).await.ok()?;
    let paths = Paths::of(&inspected);
    let process = FirstProcess::of(&inspected);
    let (mut found, sees) = tokio::task::spawn_blocking(move || paths.measure(process.as_ref())).await.ok()?;
    if !sees.root {
        // The Engine counts no entries.
        let options = InspectContainerOptionsBuilder::default().size(true).build();
        let sized = within(LOOK_WAIT, client.inspect_container(name, Some(options))).await.ok()?;
        found.bytes = found.bytes.saturating_add(u64::try_from(sized.size_rw?).unwrap_or(0));
    }
    if !sees.files
        && let Ok(guest) = guest.await
    {
        for path in OF_THE_ENGINE {
            found.bytes = found.bytes.saturating_add(guest.stat(path).await.map_or(0, |info| info.size));
        }
    }
    Some(found)
}

/// Measures a kernel share of the container of a box on an Engine of this machine.
pub(super) async fn of_kernel(client: &Client, name: &str, share: KernelShare) -> Option<u64> {
    let inspected = within(LOOK_WAIT, client.inspect_container(name, None)).await.ok()?;
    let process = FirstProcess::of(&inspected).filter(direct::is_here)?;
    kernel_usage(u32::try_from(process.pid).ok()?, share).await
}

/// Returns the resources that the container of a box uses, as the Engine counts them; all absent
/// without a running container.
pub(super) async fn of_resources(client: &Client, name: &str) -> Result<BoxStats> {
    // Without `one_shot` the Engine looks twice, a second apart.
    let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
    let mut answer = std::pin::pin!(client.stats(name, Some(options)));
    match within(LOOK_WAIT, async { answer.next().await.transpose() }).await {
        Ok(answer) => Ok(answer.map(|stats| box_stats(&stats)).unwrap_or_default()),
        Err(error) if fault::status(&error) == Some(404) => Ok(BoxStats::default()),
        Err(error) => Err(fault::failed("measure a box", error)),
    }
}

/// Converts the Engine's counters. Those of a container that does not run are 0, or missing.
fn box_stats(stats: &ContainerStatsResponse) -> BoxStats {
    let Some(processes) = stats.pids_stats.as_ref().and_then(|pids| pids.current).filter(|count| *count > 0) else {
        return BoxStats::default();
    };
    let memory = stats.memory_stats.as_ref();
    let details = memory.and_then(|memory| memory.stats.as_ref());
    // Named by the version of control groups.
    let unused = details.and_then(|all| all.get("total_inactive_file").or_else(|| all.get("inactive_file")));
    let unused = unused.copied().unwrap_or(0);
    let usage = memory.and_then(|memory| memory.usage);
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage);
    BoxStats {
        cpu: cpu.map(Duration::from_nanos),
        memory_bytes: usage.map(|usage| usage.saturating_sub(unused)),
        memory_peak_bytes: memory.and_then(|memory| memory.max_usage),
        processes: Some(processes),
        ..BoxStats::default()
    }
}

/// Returns the folder with everything that a container wrote to its root.
pub(super) fn root(container: &ContainerInspectResponse) -> Option<PathBuf> {
    container.graph_driver.as_ref()?.data.get("UpperDir").map(PathBuf::from)
}

/// Returns the folders of the volumes that a container may write.
pub(super) fn volumes(container: &ContainerInspectResponse) -> Vec<PathBuf> {
    let mounts = container.mounts.iter().flatten();
    let volumes = mounts.filter(|mount| mount.typ.as_deref() == Some("volume") && mount.rw == Some(true));
    volumes.filter_map(|mount| mount.source.as_ref()).map(PathBuf::from).collect()
}

/// Paths of a container's files, as the Engine reports them.
struct Paths {
    root: Option<PathBuf>,
    volumes: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

/// Parts that the server could measure itself: the Engine may see other paths.
#[derive(Debug, Default)]
struct Sees {
    root: bool,
    files: bool,
}

impl Paths {
    fn of(container: &ContainerInspectResponse) -> Paths {
        let files = [&container.hosts_path, &container.hostname_path, &container.resolv_conf_path];
        Paths {
            root: root(container),
            volumes: volumes(container),
            files: files.into_iter().flatten().filter(|path| !path.is_empty()).map(PathBuf::from).collect(),
        }
    }

    fn measure(&self, process: Option<&FirstProcess>) -> (DiskUsage, Sees) {
        let mut all = DiskUsage::default();
        let ours = process.filter(|process| direct::is_here(process)).and_then(|process| process.pid.try_into().ok());
        let root = self.root.as_ref().is_some_and(|root| add_usage(&mut all, root, ours));
        for volume in &self.volumes {
            add_usage(&mut all, volume, None);
        }
        let mut files = !self.files.is_empty();
        for file in &self.files {
            files &= add_usage(&mut all, file, None);
        }
        (all, Sees { root, files })
    }
}

/// Adds the usage below `path`. Returns false if it cannot be measured.
fn add_usage(all: &mut DiskUsage, path: &Path, first: Option<u32>) -> bool {
    let Ok(found) = usage(path, first) else { return false };
    all.bytes = all.bytes.saturating_add(found.bytes);
    all.entries = all.entries.saturating_add(found.entries);
    all.is_cut |= found.is_cut;
    true
}
