//! What finishes what was begun: by timer, without input, idempotent. Start-up
//! has no special path: what a crash left is found here like anything else.
//!
//! What needs only the store is one task. Each provider has tasks of its own, as
//! has everything else that asks one: a provider that does not answer harms
//! nothing but its own boxes.

mod disk;
mod kernel;
mod removals;
mod runtimes;
pub mod workers;

use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, State, StopReason};
use providers::Chain;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::removals::{Doomed, Removals};
use crate::control::{Control, Result, Sandbox};

/// How often rows are looked at: expiry is followed by removal within a second.
const ROWS_EVERY: Duration = Duration::from_millis(500);
/// How often the rows of refused keys are brought up to date.
const REFUSALS_EVERY: Duration = Duration::from_secs(5);
/// How often what has ended long ago is forgotten.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// The pause before ids for events are asked for again, after the store failed.
const IDS_RETRY: Duration = Duration::from_secs(1);
/// How often it is seen whether the store's files are larger than what is in them.
const SPACE_EVERY: Duration = Duration::from_secs(5);
/// The pause between two steps that give space back: those who write go first.
const SPACE_PAUSE: Duration = Duration::from_millis(20);
/// Rows that expire per look. What is doomed by it is no more among them.
const BATCH: u32 = 256;

/// Runs until told to stop. `data_dir` is the disk whose free space is watched.
pub async fn run(control: Arc<Control>, data_dir: std::path::PathBuf, stop: CancellationToken) {
    let mut jobs = JoinSet::new();
    jobs.spawn(look_at_rows(Arc::clone(&control)));
    jobs.spawn(tidy_the_pool(Arc::clone(&control)));
    jobs.spawn(give_space_back(Arc::clone(&control)));
    jobs.spawn(disk::watch(Arc::clone(&control), data_dir));
    jobs.spawn(kernel::watch(Arc::clone(&control)));
    for entry in control.registry().entries() {
        let name = entry.provider.name();
        jobs.spawn(runtimes::look_after(Arc::clone(&control), name.to_owned()));
        jobs.spawn(runtimes::watch(Arc::clone(&control), name.to_owned()));
    }
    tokio::select! {
        () = stop.cancelled() => {}
        // None ends by itself unless it panics, and then the service ends as a whole.
        _ = jobs.join_next() => {}
    }
    // Between any two steps of theirs, as a crash would; the next start goes on.
    jobs.shutdown().await;
}

/// What needs only the store, and the removals that follow from it.
async fn look_at_rows(control: Arc<Control>) {
    let mut removals = Removals::default();
    let mut rows = interval(ROWS_EVERY);
    let mut refusals = interval(REFUSALS_EVERY);
    let mut retention = interval(RETENTION_EVERY);
    loop {
        let (job, outcome) = tokio::select! {
            biased;
            _ = rows.tick() => ("rows", sweep_rows(&control, &mut removals).await),
            _ = refusals.tick() => ("refused keys", control.tell_refusals().await),
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

/// Keeps the store's files no larger than what is in them.
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

fn report(job: &'static str, outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(job, error = %Chain(&error), "reconciling failed and is tried again");
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
pub(crate) async fn settle(control: &Arc<Control>) {
    let mut removals = Removals::default();
    let _ = sweep_rows(control, &mut removals).await;
    removals.ended().await;
    let _ = control.reconcile_pool().await;
    for entry in control.registry().entries() {
        let _ = control.reconcile_provider(entry.provider.name()).await;
    }
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

async fn sweep_rows(control: &Arc<Control>, removals: &mut Removals) -> Result<()> {
    // Nothing is judged by the time before this is done.
    follow_clock(control).await?;
    report("silence", control.notice_silence().await);
    report("leases", control.settle_leases().await);
    // Before those that are new: what is removed again is what was left.
    let left = control.store().in_state(State::Destroying, u32::MAX).await?;
    removals.keep(&left.iter().map(|sandbox| &sandbox.id).collect());
    let left = left.into_iter().filter(|sandbox| !control.is_in_hand(&sandbox.id) && removals.is_due(&sandbox.id));
    let mut doomed: Vec<Doomed> = left.map(|sandbox| Doomed { sandbox, action: Some("removal_finished") }).collect();
    for id in control.store().due(control.now(), BATCH).await? {
        doomed.extend(doom(control, &id, StopReason::Expired, None).await);
    }
    // One that is being made by nobody was being made when we died.
    for sandbox in control.store().in_state(State::Creating, u32::MAX).await? {
        doomed.extend(doom(control, &sandbox.id, StopReason::Unfinished, Some("unfinished_removed")).await);
    }
    removals.begin(control, doomed);
    Ok(())
}

/// Writes that a sandbox is to be removed, unless somebody works on it.
async fn doom(control: &Control, id: &SandboxId, reason: StopReason, action: Option<&'static str>) -> Option<Doomed> {
    if control.is_in_hand(id) {
        return None;
    }
    let doomed: Result<Option<Sandbox>> = control.doom(id, reason).await;
    let sandbox = doomed.unwrap_or_else(|error| {
        tracing::warn!(%id, error = %Chain(&error), "cannot end a sandbox yet");
        None
    });
    Some(Doomed { sandbox: sandbox?, action })
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

#[cfg(test)]
mod test;
