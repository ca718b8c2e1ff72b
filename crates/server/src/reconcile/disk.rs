//! Disk space: removes images that no box uses, and ends the box that takes the last of the
//! space, so that the store can always write.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use domain::SandboxId;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use host_disk::Room;
use images::Images;
use providers::{Chain, DiskUsage, Provider};
use serde_json::json;
use tokio::task::JoinSet;

use super::boxes::{has_box, of_provider};
use super::job::report;
use crate::control::Control;
use crate::control::Policy;
use crate::control::Result;
use crate::control::Sandbox;
use eviction::Eviction;

/// Interval of the checks of free space.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Interval where a box that writes at the full speed of the disk could reach the reserve before
/// the next check.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// Multiple of the reserve below which the short interval applies. With the default reserve, a
/// box has to write more than 6 GB a second to get past between two checks.
const NEAR: u64 = 4;
/// Minimum disk usage, in bytes, of a box that is ended for filling the disk.
const HOG_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Part of a reserve that is held by a box of which the disk would not have run full.
const LITTLE: u64 = 4;
/// Minimum number of inodes of a box that is ended for using them up.
const HOG_ENTRIES_MIN: u64 = 1000;
/// Number of entries above which a box that cannot be measured in time is taken for the largest.
/// Else its own many entries would hide its usage.
const UNCOUNTED_ENTRIES_MIN: u64 = 100_000;
/// Maximum number of boxes of one provider that are measured at once.
const AT_ONCE: usize = 4;
/// Deadline for measuring the boxes of one provider; boxes not measured by then are skipped.
const MEASURING_MAX: Duration = Duration::from_secs(5);
/// Deadline for the removal of a box's files. After it, space still to be freed is not counted
/// on any more.
const REMOVAL_MAX: Duration = Duration::from_secs(30);
/// Time that file systems may take to show removed files as free space.
const SETTLING: Duration = Duration::from_secs(1);

/// Watches the disks with boxes on them, and that of `data_dir`.
pub(super) async fn watch(control: Arc<Control>, data_dir: PathBuf) {
    let mut guards: HashMap<u64, Guard> = HashMap::new();
    loop {
        let disks = disks(&control, &data_dir);
        guards.retain(|device, _| disks.iter().any(|disk| disk.device == *device));
        let is_near = disks.iter().any(|disk| disk.is_near(control.policy()));
        for disk in &disks {
            let guard = guards.entry(disk.device).or_insert_with(|| Guard::new(REMOVAL_MAX));
            report("disk", guard.look(&control, disk).await.map(drop));
        }
        tokio::time::sleep(if is_near { LOOK_SOON } else { LOOK_EVERY }).await;
    }
}

/// A file system, its free space, and the providers with boxes on it.
#[derive(Debug)]
struct Disk {
    device: u64,
    room: Room,
    providers: Vec<String>,
    /// Image store, if it lies on this file system.
    images: Option<Images>,
}

impl Disk {
    fn at(path: &Path) -> Option<Disk> {
        let device = std::fs::metadata(path).ok()?.dev();
        Some(Disk { device, room: Room::of(path).ok()?, providers: Vec::new(), images: None })
    }

    /// Returns whether the reserve may be reached soon.
    fn is_near(&self, policy: &Policy) -> bool {
        self.room.bytes < policy.reserve_disk_bytes.saturating_mul(NEAR)
            || self.room.entries.is_some_and(|left| left < policy.reserve_inodes.saturating_mul(NEAR))
    }
}

/// Returns all disks to watch. Boxes whose disk is unknown are taken to lie on that of
/// `data_dir`.
fn disks(control: &Control, data_dir: &Path) -> Vec<Disk> {
    let mut disks: Vec<Disk> = Disk::at(data_dir).into_iter().collect();
    for entry in control.registry().entries() {
        let name = entry.provider.name().to_owned();
        let own = entry.provider.disk().and_then(|disk| Disk::at(&disk.dir));
        let known = disks.iter_mut().position(|disk| own.as_ref().is_none_or(|own| own.device == disk.device));
        match (known, own) {
            (Some(known), _) => disks[known].providers.push(name),
            (None, Some(own)) => disks.push(Disk { providers: vec![name], ..own }),
            (None, None) => {}
        }
    }
    if let Some(images) = control.registry().images()
        && let Some(own) = Disk::at(images.dir())
        && let Some(disk) = disks.iter_mut().find(|disk| disk.device == own.device)
    {
        disk.images = Some(images.clone());
    }
    disks
}

/// Kind of space that a disk is short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Short {
    Bytes,
    Entries,
}

impl Short {
    /// Returns a box's usage of it.
    fn of(self, usage: DiskUsage) -> u64 {
        match self {
            Short::Bytes => usage.bytes,
            Short::Entries => usage.entries,
        }
    }

    /// Returns whether a box uses enough of it to be ended.
    fn is_hog(self, usage: DiskUsage) -> bool {
        let least = match self {
            Short::Bytes => HOG_BYTES_MIN,
            Short::Entries => HOG_ENTRIES_MIN,
        };
        self.of(usage) >= least || is_uncounted(usage)
    }

    /// Returns whether too little is left to wait for the removal of images.
    fn is_urgent(self, room: Room, policy: &Policy) -> bool {
        match self {
            Short::Bytes => room.bytes < policy.reserve_disk_bytes / 2,
            Short::Entries => room.entries.is_some_and(|left| left < policy.reserve_inodes / 2),
        }
    }

    /// Returns what the caller of an ended box can do.
    fn advice(self, usage: DiskUsage, sandbox: &Sandbox, policy: &Policy) -> &'static str {
        let held_little = match self {
            Short::Bytes => usage.bytes < policy.reserve_disk_bytes / LITTLE,
            Short::Entries => usage.entries < policy.reserve_inodes / LITTLE,
        };
        if held_little {
            return "other data fills that disk, so a limit on this sandbox would not have helped: the operator has to \
                    free space";
        }
        match (self, sandbox.resources.disk_mb) {
            (Short::Bytes, 0) => "spawn with `disk_mb` to limit it",
            (Short::Bytes, _) => "spawn with less `disk_mb`",
            (Short::Entries, 0) => "spawn with `disk_mb` to give it its own file system",
            (Short::Entries, _) => "spawn with less `disk_mb`, which limits its files too",
        }
    }

    /// Returns the reason of a box's end for its caller, with advice.
    fn reason(self, usage: DiskUsage, sandbox: &Sandbox, disk: &Disk, policy: &Policy) -> String {
        let least = if usage.is_cut { "at least " } else { "" };
        let advice = self.advice(usage, sandbox, policy);
        match self {
            Short::Bytes => format!(
                "it held {least}{} MiB when the server's disk had less than {} MiB left; {advice}",
                usage.bytes >> 20,
                policy.reserve_disk_bytes >> 20
            ),
            Short::Entries => format!(
                "it had {least}{} files and directories when the server's disk had {} inodes left; {advice}",
                usage.entries,
                disk.room.entries.unwrap_or(0)
            ),
        }
    }
}

fn is_uncounted(usage: DiskUsage) -> bool {
    usage.is_cut && usage.entries >= UNCOUNTED_ENTRIES_MIN
}

/// Boxes that were ended on one disk.
#[derive(Debug)]
struct Guard {
    removals: JoinSet<SandboxId>,
    /// Space that each of them will free.
    coming: HashMap<SandboxId, DiskUsage>,
    /// Time for which a removal is counted on.
    removal_max: Duration,
    /// Removal of images on this disk.
    eviction: Eviction,
}

impl Guard {
    fn new(removal_max: Duration) -> Self {
        Self { removals: JoinSet::new(), coming: HashMap::new(), removal_max, eviction: Eviction::default() }
    }

    /// Removes images that no box uses, or ends the largest box, if too little is free even with
    /// all removals under way. Returns the box.
    async fn look(&mut self, control: &Arc<Control>, disk: &Disk) -> Result<Option<SandboxId>> {
        while let Some(ended) = self.removals.try_join_next() {
            match ended {
                Ok(id) => drop(self.coming.remove(&id)),
                // After a panic, the state of the other removals is unknown.
                Err(_) => self.coming.clear(),
            }
        }
        let Some(short) = self.short(control.policy(), disk.room) else { return Ok(None) };
        let largest = largest(control, disk, short, &self.coming).await?.filter(|(usage, _)| short.is_hog(*usage));
        let held = largest.as_ref().map_or(0, |(usage, _)| short.of(*usage));
        let images_go = match &disk.images {
            Some(images) => self.eviction.begin(images, |usage| short.of(usage), held).await,
            None => false,
        };
        let Some((usage, sandbox)) = largest else { return Ok(None) };
        if images_go && !short.is_urgent(disk.room, control.policy()) {
            return Ok(None);
        }
        let id = sandbox.id.clone();
        tracing::warn!(%id, ?usage, room = ?disk.room, "ending the sandbox that fills the disk");
        let reason = short.reason(usage, &sandbox, disk, control.policy());
        let failed = match control.fail(&id, &reason).await {
            Ok(Some(failed)) => failed,
            Ok(None) => return Ok(None),
            // There may be no space to store it: the box has to go first.
            Err(error) => {
                tracing::warn!(%id, error = %Chain(&error), "cannot record the end of the sandbox; retrying later");
                sandbox
            }
        };
        control.publish_action("disk_freed", Some(&id), json!({"bytes": usage.bytes, "entries": usage.entries}));
        self.coming.insert(id.clone(), usage);
        let (control, removal_max) = (Arc::clone(control), self.removal_max);
        self.removals.spawn(async move {
            match tokio::time::timeout(removal_max, control.clear_away(&failed)).await {
                Ok(Ok(())) => tokio::time::sleep(SETTLING).await,
                // The inventory removes it later: a box without an active sandbox.
                Ok(Err(error)) => tracing::warn!(id = %failed.id, error = %Chain(&error), "cannot free the disk; \
                    retrying later"),
                Err(_) => tracing::warn!(id = %failed.id, "removing the sandbox takes a long time"),
            }
            if has_box(failed.state) {
                report("disk", control.fail(&failed.id, &reason).await.map(drop));
            }
            failed.id
        });
        Ok(Some(id))
    }

    /// Returns the kind of space that too little is free of.
    fn short(&self, policy: &Policy, room: Room) -> Option<Short> {
        let coming = |short: Short| self.coming.values().map(|usage| short.of(*usage)).sum::<u64>();
        if room.bytes.saturating_add(coming(Short::Bytes)) < policy.reserve_disk_bytes {
            return Some(Short::Bytes);
        }
        let left = room.entries?.saturating_add(coming(Short::Entries));
        (left < policy.reserve_inodes).then_some(Short::Entries)
    }
}

/// Returns the box of this server that uses most of the disk, with or without a bound of its
/// own: a bound promises space, and several boxes may have been promised the same.
async fn largest(
    control: &Control,
    disk: &Disk,
    short: Short,
    ended: &HashMap<SandboxId, DiskUsage>,
) -> Result<Option<(DiskUsage, Sandbox)>> {
    let mut measured = Vec::new();
    for provider in &disk.providers {
        let Some(entry) = control.registry().get(provider) else { continue };
        let mut boxes = of_provider(control, provider).await?;
        boxes.retain(|id| !ended.contains_key(id));
        measured.push(measure(entry.provider.as_ref(), boxes));
    }
    let measured = join_all(measured).await.into_iter().flatten();
    let largest = measured.max_by_key(|(usage, _)| (is_uncounted(*usage), short.of(*usage)));
    let Some((usage, id)) = largest else { return Ok(None) };
    Ok(control.store().sandbox(&id).await?.map(|sandbox| (usage, sandbox)))
}

async fn measure(provider: &dyn Provider, boxes: Vec<SandboxId>) -> Vec<(DiskUsage, SandboxId)> {
    let usages = stream::iter(boxes).map(|id| async { (provider.disk_usage(&id).await, id) });
    let usages = usages.buffer_unordered(AT_ONCE).take_until(tokio::time::sleep(MEASURING_MAX));
    usages.filter_map(|(usage, id)| std::future::ready(usage.map(|usage| (usage, id)))).collect().await
}

mod eviction;
#[cfg(test)]
mod test;
