//! What finishes what was begun: by timer, without input, idempotent. Start-up
//! has no special path: what a crash left is found here like anything else.

pub mod workers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{SandboxId, State, StopReason};
use futures_util::StreamExt;
use providers::Chain;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::control::{Control, LOCAL_WORKER, Result, Sandbox};

/// How often rows are looked at: expiry is followed by removal within a second.
const ROWS_EVERY: Duration = Duration::from_millis(500);
/// How often providers are asked what they hold.
const INVENTORY_EVERY: Duration = Duration::from_secs(5);
/// How often providers are asked how they are.
const HEALTH_EVERY: Duration = Duration::from_secs(30);
/// How often the rows of refused keys are brought up to date.
const REFUSALS_EVERY: Duration = Duration::from_secs(5);
/// How often what has ended long ago is forgotten.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// The pause before ids for events are asked for again, after the store failed.
const IDS_RETRY: Duration = Duration::from_secs(1);
/// Rows of one state per look.
const BATCH: u32 = 256;
/// The pause after a first failed removal; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest pause between two tries to remove a box.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How many removals are waited for at once.
const AT_ONCE: usize = 16;
/// How long one is waited for.
const REMOVAL_WAIT: Duration = Duration::from_secs(2);
/// A box that holds less than this is not what fills a disk.
const DISK_HOG_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// When to try again to remove what could not be removed. Only pacing: losing
/// it costs a try.
#[derive(Debug, Default)]
struct Backoff {
    tries: HashMap<SandboxId, (Duration, Instant)>,
}

impl Backoff {
    fn is_due(&self, id: &SandboxId, now: Instant) -> bool {
        self.tries.get(id).is_none_or(|(_, next)| *next <= now)
    }

    fn failed(&mut self, id: SandboxId, now: Instant) {
        let pause = self.tries.get(&id).map_or(RETRY_MIN, |(pause, _)| (*pause * 2).min(RETRY_MAX));
        self.tries.insert(id, (pause, now + pause));
    }

    /// Keeps only what is still there, so that it cannot grow.
    fn keep(&mut self, present: &[SandboxId]) {
        self.tries.retain(|id, _| present.contains(id));
    }
}

/// Runs until told to stop. `data_dir` is the disk whose free space is watched.
pub async fn run(control: Arc<Control>, data_dir: std::path::PathBuf, stop: CancellationToken) {
    let mut backoff = Backoff::default();
    let mut rows = interval(ROWS_EVERY);
    let mut inventory = interval(INVENTORY_EVERY);
    let mut health = interval(HEALTH_EVERY);
    let mut refusals = interval(REFUSALS_EVERY);
    let mut retention = interval(RETENTION_EVERY);
    loop {
        let (job, outcome) = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = rows.tick() => ("rows", sweep_rows(&control, &mut backoff, &data_dir).await),
            _ = inventory.tick() => ("inventory", sweep_inventory(&control).await),
            () = control.vanished.notified() => ("inventory", sweep_inventory(&control).await),
            _ = health.tick() => ("health", check_health(&control).await),
            _ = refusals.tick() => ("refused keys", control.tell_refusals().await),
            _ = retention.tick() => ("retention", forget(&control).await),
        };
        if let Err(error) = outcome {
            tracing::warn!(job, error = %Chain(&error), "reconciling failed and is tried again");
        }
    }
}

/// Keeps ids at hand for the events to come, until told to stop. Beside the
/// other jobs, since no slow provider may hold it up.
pub async fn number_events(control: Arc<Control>, stop: CancellationToken) {
    let keep = async {
        loop {
            control.events().ids_wanted().await;
            if let Err(error) = control.reserve_event_ids().await {
                tracing::warn!(
                    error = %Chain(&error),
                    "no ids for events; those that come without one are lost"
                );
                tokio::time::sleep(IDS_RETRY).await;
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep => {}
    }
}

/// Looks at everything once, now.
#[cfg(test)]
pub(crate) async fn settle(control: &Arc<Control>, data_dir: &std::path::Path) {
    let _ = sweep_rows(control, &mut Backoff::default(), data_dir).await;
    let _ = sweep_inventory(control).await;
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

async fn sweep_rows(control: &Arc<Control>, backoff: &mut Backoff, data_dir: &std::path::Path) -> Result<()> {
    follow_clock(control).await?;
    control.notice_silence().await?;
    control.settle_leases().await?;
    expire(control).await?;
    finish_creating(control).await?;
    finish_destroying(control, backoff).await?;
    control.reconcile_pool().await?;
    guard_disk(control, data_dir).await
}

/// Deadlines move with a wall clock that somebody sets.
async fn follow_clock(control: &Control) -> Result<()> {
    if let Some(step_ms) = control.clock().step() {
        // Nothing between these two: what has moved already must not look expired.
        let moved = control.store().shift_times(step_ms).await?;
        control.clock().follow(step_ms);
        control.publish_action("clock_followed", None, json!({"step_ms": step_ms, "sandboxes": moved}));
        tracing::warn!(step_ms, moved, "the wall clock was set; the ends of live sandboxes move with it");
    }
    Ok(())
}

/// Waits for a removal, but not for a worker that does not answer: a removal
/// goes on by itself, and is in hand until it has ended.
async fn patiently<T>(removal: impl Future<Output = Result<T>>) -> Option<Result<T>> {
    tokio::time::timeout(REMOVAL_WAIT, removal).await.ok()
}

async fn expire(control: &Arc<Control>) -> Result<()> {
    let due = control.store().due(control.now(), BATCH).await?;
    let due = due.into_iter().filter(|id| !control.is_in_hand(id));
    futures_util::stream::iter(due)
        .for_each_concurrent(AT_ONCE, |id| async move {
            if let Some(Err(error)) = patiently(control.destroy_because(&id, StopReason::Expired)).await {
                tracing::warn!(%id, error = %Chain(&error), "cannot remove an expired sandbox yet");
            }
        })
        .await;
    Ok(())
}

/// A sandbox that is being created by nobody was being created when we died.
async fn finish_creating(control: &Arc<Control>) -> Result<()> {
    for sandbox in control.store().in_state(State::Creating, BATCH).await? {
        if control.is_in_hand(&sandbox.id) {
            continue;
        }
        // What is only asked for here, is finished below.
        if let Some(Ok(true)) = patiently(control.destroy_because(&sandbox.id, StopReason::Unfinished)).await {
            control.publish_action("unfinished_removed", Some(&sandbox.id), json!({"provider": sandbox.provider}));
        }
    }
    Ok(())
}

async fn finish_destroying(control: &Arc<Control>, backoff: &mut Backoff) -> Result<()> {
    let waiting = control.store().in_state(State::Destroying, BATCH).await?;
    let ids: Vec<SandboxId> = waiting.iter().map(|sandbox| sandbox.id.clone()).collect();
    backoff.keep(&ids);
    let now = Instant::now();
    let is_due = |sandbox: &Sandbox| !control.is_in_hand(&sandbox.id) && backoff.is_due(&sandbox.id, now);
    let due: Vec<Sandbox> = waiting.into_iter().filter(is_due).collect();
    let removed = futures_util::stream::iter(due)
        .map(|sandbox| async move { (patiently(control.remove(&sandbox)).await, sandbox) })
        .buffer_unordered(AT_ONCE);
    for (outcome, sandbox) in removed.collect::<Vec<_>>().await {
        match outcome {
            Some(Ok(())) => {
                let data = json!({"provider": sandbox.provider});
                control.publish_action("removal_finished", Some(&sandbox.id), data);
            }
            Some(Err(error)) => {
                tracing::warn!(id = %sandbox.id, error = %Chain(&error), "cannot remove a sandbox yet");
                backoff.failed(sandbox.id, now);
            }
            None => {}
        }
    }
    Ok(())
}

async fn sweep_inventory(control: &Arc<Control>) -> Result<()> {
    for entry in control.registry().entries() {
        control.reconcile_inventory(entry.provider.name()).await?;
    }
    Ok(())
}

async fn check_health(control: &Control) -> Result<()> {
    control.test_providers().await;
    Ok(())
}

async fn forget(control: &Control) -> Result<()> {
    let purged = control.store().purge_ended(control.retention_ends_before(), control.now()).await?;
    if purged > 0 {
        tracing::debug!(purged, "forgot sandboxes that ended long ago");
    }
    let pruned = control.prune_audit().await?;
    if pruned > 0 {
        tracing::debug!(pruned, "forgot rows of the audit history");
    }
    Ok(())
}

/// Ends the box that takes the free space, so that the store can always write.
async fn guard_disk(control: &Arc<Control>, data_dir: &std::path::Path) -> Result<()> {
    let reserve = control.policy().reserve_disk_bytes;
    let Some(free) = free_bytes(data_dir) else { return Ok(()) };
    if free >= reserve {
        return Ok(());
    }
    let mut largest: Option<(u64, SandboxId)> = None;
    for sandbox in control.store().in_state(State::Running, u32::MAX).await? {
        // A box with a bound of its own was given that much on purpose.
        if sandbox.resources.disk_mb != 0 || sandbox.worker != LOCAL_WORKER {
            continue;
        }
        let Some(entry) = control.registry().get(&sandbox.provider) else { continue };
        let bytes = entry.provider.disk_usage(&sandbox.id).await.unwrap_or(0);
        if largest.as_ref().is_none_or(|(most, _)| bytes > *most) {
            largest = Some((bytes, sandbox.id));
        }
    }
    if let Some((bytes, id)) = largest.filter(|(bytes, _)| *bytes >= DISK_HOG_BYTES_MIN) {
        tracing::warn!(%id, bytes, free, reserve, "ending the sandbox that fills the disk");
        let reason = format!(
            "it held {} MiB when the server's disk had less than {} MiB left; spawn with `disk_mb` to bound it",
            bytes >> 20,
            reserve >> 20
        );
        control.fail(&id, &reason).await?;
        control.publish_action("disk_freed", Some(&id), json!({"bytes": bytes}));
    }
    Ok(())
}

fn free_bytes(path: &std::path::Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn tries_to_remove_become_rarer_and_are_forgotten() {
        let (a, b) = (SandboxId::from_entropy([1; 10]), SandboxId::from_entropy([2; 10]));
        let start = Instant::now();
        let mut backoff = Backoff::default();
        assert!(backoff.is_due(&a, start));
        backoff.failed(a.clone(), start);
        assert!(!backoff.is_due(&a, start + RETRY_MIN / 2));
        assert!(backoff.is_due(&a, start + RETRY_MIN));
        for _ in 0..20 {
            backoff.failed(a.clone(), start);
        }
        assert!(!backoff.is_due(&a, start + RETRY_MAX / 2));
        assert!(backoff.is_due(&a, start + RETRY_MAX));
        backoff.keep(&[b]);
        assert!(backoff.tries.is_empty());
    }
}
