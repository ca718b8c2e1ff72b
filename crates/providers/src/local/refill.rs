//! Preparations for the next box.

use std::time::Duration;

use tokio_util::task::TaskTracker;

/// Time between a box that has answered and the preparations for the next one. The caller of the
/// first one has its answer earlier, and the next one takes longer.
const AFTER: Duration = Duration::from_millis(2);

/// Runs `refill` in the background, but not before the caller of the box that has just been made
/// has an answer: both would take their time from the same processors.
pub(crate) fn refill_soon(tasks: &TaskTracker, refill: impl FnOnce() + Send + 'static) {
    let blocking = tasks.clone();
    tasks.spawn(async move {
        tokio::time::sleep(AFTER).await;
        blocking.spawn_blocking(refill);
    });
}
