//! Jobs that are done again and again.

use std::time::Duration;

use providers::Chain;

use crate::control::Result;

/// Returns the ticks of a job. A late tick delays those that follow.
pub(super) fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

/// Logs the failure of a job.
pub(super) fn report(job: &'static str, outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(job, error = %Chain(&error), "reconciling failed; trying again");
    }
}
