//! The reconciler completes unfinished work: by timer, without input, and idempotent. Start-up
//! has no special path, since the reconciler finds all that a crash left.
//!
//! One task does the work that needs only the store. Each provider has its own tasks, and so has
//! all other work that calls a provider. A provider that does not answer thus affects only its
//! own boxes.

mod boxes;
mod disk;
mod job;
mod kernel;
mod removals;
mod runtimes;
mod warm;
pub mod workers;

use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, State, StopReason};
use futures_util::{StreamExt, TryStreamExt, future};
use providers::Chain;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::job::{interval, report};
use self::removals::{Doomed, Removals};
use crate::control::Control;
use crate::control::Idle;
use crate::control::Result;
use crate::control::Sandbox;

/// Interval of the row checks: an expired sandbox is removed within a second.
const ROWS_EVERY: Duration = Duration::from_millis(500);
/// Interval at which the rows of refused keys are updated.
const REFUSALS_EVERY: Duration = Duration::from_secs(5);
/// Interval at which the last uses of keys are stored.
const KEY_USES_EVERY: Duration = Duration::from_secs(60);
/// Interval at which old rows of ended sandboxes are deleted.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// Interval at which what is left of builds of templates is removed.
const BUILDS_EVERY: Duration = Duration::from_secs(60);
/// Pause before event ids are requested again after the store failed.
const IDS_RETRY: Duration = Duration::from_secs(1);
/// Interval at which boxes are looked for whose connections are not served: an agent waits a few
/// seconds for the service.
const EGRESS_EVERY: Duration = Duration::from_secs(1);
/// Interval at which boxes are looked for whose ports are not watched.
const PORTS_EVERY: Duration = Duration::from_secs(1);
/// Interval at which free pages of the store's files are looked for.
const SPACE_EVERY: Duration = Duration::from_secs(5);
/// Pause between two steps that free pages, so that other writers go first.
const SPACE_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of expired rows per query. Expired rows are then `destroying`, and not found
/// again.
const BATCH: u32 = 256;
/// Maximum number of rows left by a crash or a failure that one round begins to remove.
const LEFT_MAX: usize = 256;

/// Runs until cancelled. `data_dir` is on the disk whose free space is watched.
pub async fn run(control: Arc<Control>, data_dir: std::path::PathBuf, stop: CancellationToken) {
    let mut jobs = JoinSet::new();
    jobs.spawn(look_at_rows(Arc::clone(&control)));
    jobs.spawn(tidy_the_pool(Arc::clone(&control)));
    jobs.spawn(tidy_builds(Arc::clone(&control)));
    jobs.spawn(give_space_back(Arc::clone(&control)));
    jobs.spawn(pause_idle(Arc::clone(&control)));
    jobs.spawn(serve_egress(Arc::clone(&control)));
    jobs.spawn(watch_ports(Arc::clone(&control)));
    jobs.spawn(disk::watch(Arc::clone(&control), data_dir));
    jobs.spawn(kernel::watch(Arc::clone(&control)));
    for entry in 0..control.warm_entries() {
        jobs.spawn(warm::keep(Arc::clone(&control), entry));
    }
    for entry in control.registry().entries() {
        let name = entry.provider.name();
        jobs.spawn(runtimes::look_after(Arc::clone(&control), name.to_owned()));
        jobs.spawn(runtimes::watch(Arc::clone(&control), name.to_owned()));
    }
    tokio::select! {
        () = stop.cancelled() => {}
        // No job ends unless it panics, and then the whole service ends.
        _ = jobs.join_next() => {}
    }
    // Jobs end between any two steps, as in a crash; the next start continues.
    jobs.shutdown().await;
}

/// Does the work that needs only the store, and begins the removals that follow from it.
async fn look_at_rows(control: Arc<Control>) {
    let mut removals = Removals::default();
    let mut rows = interval(ROWS_EVERY);
    let mut refusals = interval(REFUSALS_EVERY);
    let mut retention = interval(RETENTION_EVERY);
    let mut key_uses = interval(KEY_USES_EVERY);
    loop {
        let (job, outcome) = tokio::select! {
            biased;
            _ = rows.tick() => ("rows", sweep_rows(&control, &mut removals).await),
            _ = refusals.tick() => ("refused keys", control.flush_refusals().await),
            _ = key_uses.tick() => ("uses of keys", control.store_key_uses().await),
            _ = retention.tick() => ("retention", forget(&control).await),
        };
        report(job, outcome);
    }
}

async fn tidy_the_pool(control: Arc<Control>) {
    let mut look = interval(ROWS_EVERY);
    loop {
        look.tick().await;
        report("pool", control.reconcile_pool().await);
    }
}

/// Forgets builds that are over, and removes what is left of them.
async fn tidy_builds(control: Arc<Control>) {
    let mut look = interval(BUILDS_EVERY);
    loop {
        look.tick().await;
        report("builds", control.tidy_builds().await);
    }
}

/// Pauses the sandboxes that have not been used for a while.
async fn pause_idle(control: Arc<Control>) {
    let mut look = interval(ROWS_EVERY);
    let mut idle = Idle::default();
    loop {
        look.tick().await;
        report("idle sandboxes", control.pause_idle(&mut idle).await);
    }
}

/// Serves the boxes whose connections are not served.
async fn serve_egress(control: Arc<Control>) {
    let mut look = interval(EGRESS_EVERY);
    loop {
        look.tick().await;
        report("egress", control.serve_all_egress().await);
    }
}

/// Watches the ports of the boxes that are not watched.
async fn watch_ports(control: Arc<Control>) {
    let mut look = interval(PORTS_EVERY);
    loop {
        look.tick().await;
        report("ports", control.watch_all_ports().await);
    }
}

/// Shrinks the store's files to the size of their contents.
async fn give_space_back(control: Arc<Control>) {
    let mut look = interval(SPACE_EVERY);
    loop {
        look.tick().await;
        loop {
            match control.store().give_back().await {
                Ok(true) => tokio::time::sleep(SPACE_PAUSE).await,
                Ok(false) => break,
                Err(error) => {
                    report("space", Err(error.into()));
                    break;
                }
            }
        }
    }
}

/// Reserves ids for future events until cancelled. Separate from the other jobs, since no slow
/// provider may delay it.
pub async fn number_events(control: Arc<Control>, stop: CancellationToken) {
    let keep = async {
        loop {
            control.events().ids_wanted().await;
            if let Err(error) = control.reserve_event_ids().await {
                tracing::warn!(
                    error = %Chain(&error),
                    "cannot reserve event ids; events without an id are lost"
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

/// Runs every check once, now.
#[cfg(test)]
pub(crate) async fn settle(control: &Arc<Control>) {
    let mut removals = Removals::default();
    let _ = sweep_rows(control, &mut removals).await;
    removals.ended().await;
    let _ = control.reconcile_pool().await;
    for entry in control.registry().entries() {
        let _ = control.reconcile_provider(entry.provider.name()).await;
    }
}

async fn sweep_rows(control: &Arc<Control>, removals: &mut Removals) -> Result<()> {
    // Expiry is not judged before a step of the clock is handled.
    follow_clock(control).await?;
    control.owner_keys().end_expired();
    report("silence", control.notice_silence().await);
    report("leases", control.settle_leases().await);
    // Rows in `destroying` before new ones, so that only these count as left over.
    removals.update();
    let mut doomed = left_over(control, removals).await?;
    for id in control.store().due(control.now(), BATCH).await? {
        if !control.pause_at_end(&id).await? {
            doomed.extend(begin_destroy(control, &id, StopReason::Expired, None).await);
        }
    }
    doomed.extend(unfinished(control).await?);
    removals.begin(control, doomed);
    Ok(())
}

/// Returns sandboxes in state `destroying` whose removal may be attempted now, at most [`LEFT_MAX`].
async fn left_over(control: &Control, removals: &Removals) -> Result<Vec<Doomed>> {
    let rows = control.in_state(State::Destroying);
    let due = rows.try_filter(|row| future::ready(!control.is_in_hand(&row.id) && removals.is_due(row)));
    let doomed = due.map_ok(|sandbox| Doomed { sandbox, action: Some("removal_finished") });
    doomed.take(LEFT_MAX).try_collect().await
}

/// Begins to remove sandboxes in state `creating` that a crash left, at most [`LEFT_MAX`]: no task of
/// this process works on them.
async fn unfinished(control: &Control) -> Result<Vec<Doomed>> {
    let rows = control.in_state(State::Creating);
    let begun = rows.try_filter_map(async |row| {
        Ok(begin_destroy(control, &row.id, StopReason::Unfinished, Some("unfinished_removed")).await)
    });
    begun.take(LEFT_MAX).try_collect().await
}

/// Stores that a sandbox is to be removed, unless a task of this process works on it.
async fn begin_destroy(
    control: &Control,
    id: &SandboxId,
    reason: StopReason,
    action: Option<&'static str>,
) -> Option<Doomed> {
    if control.is_in_hand(id) {
        return None;
    }
    let doomed: Result<Option<Sandbox>> = control.begin_destroy(id, reason).await;
    let sandbox = doomed.unwrap_or_else(|error| {
        tracing::warn!(%id, error = %Chain(&error), "cannot end a sandbox; retrying later");
        None
    });
    Some(Doomed { sandbox: sandbox?, action })
}

/// Shifts stored deadlines when the wall clock was set.
async fn follow_clock(control: &Control) -> Result<()> {
    if let Some(step_ms) = control.clock().step() {
        // Requests are answered between the two steps, and no time may look expired to them: what was
        // set back is followed by the clock first, what was set forward by the stored times.
        let (before, after) = if step_ms < 0 { (step_ms, 0) } else { (0, step_ms) };
        control.clock().follow(before);
        let moved = control.store().shift_times(step_ms).await.inspect_err(|_| control.clock().follow(-before))?;
        control.clock().follow(after);
        control.publish_action("clock_followed", None, json!({"step_ms": step_ms, "sandboxes": moved}));
        tracing::warn!(step_ms, moved, "the wall clock was set; moving the deadlines of live sandboxes with it");
    }
    Ok(())
}

async fn forget(control: &Control) -> Result<()> {
    let purged = control.store().purge_ended(control.retention_ends_before(), control.now()).await?;
    if purged > 0 {
        tracing::debug!(purged, "deleted the rows of sandboxes that ended long ago");
    }
    let keys = control.purge_keys().await?;
    if keys > 0 {
        tracing::debug!(keys, "deleted keys that ended long ago");
    }
    let pruned = control.prune_audit().await?;
    if pruned > 0 {
        tracing::debug!(pruned, "deleted old rows of the audit history");
    }
    Ok(())
}

#[cfg(test)]
mod test;
