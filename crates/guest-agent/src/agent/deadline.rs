//! When the box ends by itself, should no server come back.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

/// How often the clock is looked at while the deadline is far: timers stand
/// still while the machine is suspended, this clock does not.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The end of the box, movable.
pub(crate) struct Deadline {
    at_ms: Cell<u64>,
    moved: Notify,
}

impl Deadline {
    pub(crate) fn in_ms(ms: u64) -> Self {
        Self { at_ms: Cell::new(now_ms().saturating_add(ms)), moved: Notify::new() }
    }

    /// Sets it anew.
    pub(crate) fn set(&self, in_ms: u64) {
        self.at_ms.set(now_ms().saturating_add(in_ms));
        self.moved.notify_one();
    }

    /// Returns when it has passed.
    pub(crate) async fn passed(&self) {
        loop {
            let left = Duration::from_millis(self.at_ms.get().saturating_sub(now_ms()));
            if left.is_zero() {
                return;
            }
            // Either way we look again.
            let _ = tokio::time::timeout(left.min(LOOK_EVERY), self.moved.notified()).await;
        }
    }
}

/// Milliseconds of a clock that counts suspension and cannot be set.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}
