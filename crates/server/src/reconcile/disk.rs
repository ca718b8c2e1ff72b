//! The free space of the disk: ends the box that takes the last of it, so that the
//! store can always write.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, State};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use providers::{Chain, Provider};
use serde_json::json;
use tokio::task::JoinSet;

use super::{interval, report};
use crate::control::{Control, LOCAL_WORKER, Result};

/// How often the free space is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A box that holds less than this is not what fills a disk.
const HOG_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// How many boxes of one provider are measured at once.
const AT_ONCE: usize = 4;
/// How long the boxes of one provider may take to be measured; those that are not
/// by then are passed over.
const MEASURING_MAX: Duration = Duration::from_secs(5);
/// How long the removal of what a box held may take. After that, what is still
/// there is not counted on any more.
const REMOVAL_MAX: Duration = Duration::from_secs(30);
/// How long file systems may take to show as free what has been removed.
const SETTLING: Duration = Duration::from_secs(1);

/// Looks at the disk of `data_dir` again and again.
pub(super) async fn watch(control: Arc<Control>, data_dir: PathBuf) {
    let mut guard = Guard::new(REMOVAL_MAX);
    let mut look = interval(LOOK_EVERY);
    loop {
        look.tick().await;
        if let Some(free) = free_bytes(&data_dir) {
            report("disk", guard.look(&control, free).await.map(drop));
        }
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// What is known of the boxes that were ended.
#[derive(Debug)]
struct Guard {
    /// The removals under way.
    removals: JoinSet<SandboxId>,
    /// What each of them is going to free, in bytes.
    coming: HashMap<SandboxId, u64>,
    /// How long each of them is counted on.
    removal_max: Duration,
}

impl Guard {
    fn new(removal_max: Duration) -> Self {
        Self { removals: JoinSet::new(), coming: HashMap::new(), removal_max }
    }

    /// Ends the largest box if too little is free, also after all that is being
    /// removed already; which.
    async fn look(&mut self, control: &Arc<Control>, free: u64) -> Result<Option<SandboxId>> {
        while let Some(ended) = self.removals.try_join_next() {
            match ended {
                Ok(id) => drop(self.coming.remove(&id)),
                // Nothing is known of any of them then.
                Err(_) => self.coming.clear(),
            }
        }
        let reserve = control.policy().reserve_disk_bytes;
        let coming: u64 = self.coming.values().sum();
        if free.saturating_add(coming) >= reserve {
            return Ok(None);
        }
        let Some((bytes, id)) = largest(control).await?.filter(|(bytes, _)| *bytes >= HOG_BYTES_MIN) else {
            return Ok(None);
        };
        tracing::warn!(%id, bytes, free, reserve, "ending the sandbox that fills the disk");
        let reason = format!(
            "it held {} MiB when the server's disk had less than {} MiB left; spawn with `disk_mb` to bound it",
            bytes >> 20,
            reserve >> 20
        );
        let Some(sandbox) = control.fail(&id, &reason).await? else { return Ok(None) };
        control.publish_action("disk_freed", Some(&id), json!({"bytes": bytes}));
        self.coming.insert(id.clone(), bytes);
        let (control, removal_max) = (Arc::clone(control), self.removal_max);
        self.removals.spawn(async move {
            match tokio::time::timeout(removal_max, control.clear_away(&sandbox)).await {
                Ok(Ok(())) => tokio::time::sleep(SETTLING).await,
                // The inventory finds it: a box without an active sandbox.
                Ok(Err(error)) => tracing::warn!(id = %sandbox.id, error = %Chain(&error), "cannot free the disk yet"),
                Err(_) => tracing::warn!(id = %sandbox.id, "what filled the disk takes long to remove"),
            }
            sandbox.id
        });
        Ok(Some(id))
    }
}

/// The box of this server that takes most of the disk, among those that may take
/// as much as they like.
async fn largest(control: &Control) -> Result<Option<(u64, SandboxId)>> {
    let mut boxes: BTreeMap<String, Vec<SandboxId>> = BTreeMap::new();
    for sandbox in control.store().in_state(State::Running, u32::MAX).await? {
        // A box with a bound of its own was given that much on purpose.
        if sandbox.resources.disk_mb == 0 && sandbox.worker == LOCAL_WORKER {
            boxes.entry(sandbox.provider).or_default().push(sandbox.id);
        }
    }
    let measured = boxes.into_iter().filter_map(|(provider, ids)| {
        let entry = control.registry().get(&provider)?;
        Some(measure(entry.provider.as_ref(), ids))
    });
    Ok(join_all(measured).await.into_iter().flatten().max())
}

/// What the largest of these boxes takes.
async fn measure(provider: &dyn Provider, ids: Vec<SandboxId>) -> Option<(u64, SandboxId)> {
    let usages = stream::iter(ids).map(|id| async { (provider.disk_usage(&id).await.unwrap_or(0), id) });
    let usages = usages.buffer_unordered(AT_ONCE).take_until(tokio::time::sleep(MEASURING_MAX));
    usages.fold(None, |most, next| std::future::ready(most.max(Some(next)))).await
}

#[cfg(test)]
mod test;
