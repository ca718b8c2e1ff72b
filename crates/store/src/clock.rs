//! The server's clock: monotonic, and started at the wall clock's time.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use domain::Timestamp;

/// Difference from the server's clock above which the wall clock counts as stepped.
pub const STEP_MIN: Duration = Duration::from_secs(5);

/// Source of time. Code that has effects takes the time from here; pure code takes `now` as an
/// argument.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the present time, in UTC, to the millisecond. It never goes back, and jumps only
    /// by [`Clock::follow`].
    fn now(&self) -> Timestamp;

    /// Returns by how many milliseconds the wall clock has been stepped away from this clock, if
    /// by more than [`STEP_MIN`].
    fn step(&self) -> Option<i64>;

    /// Includes the step in [`Clock::now`] from now on. The caller moves the stored times by the same
    /// amount. If the server stops between the two, the next start trusts the stored times and the
    /// wall clock: they agree, or sandboxes are remembered for longer than their boxes live, which end
    /// by themselves.
    fn follow(&self, step_ms: i64);
}

/// The machine's monotonic clock, started at the wall clock's time.
#[derive(Debug)]
pub struct SteadyClock {
    started: Instant,
    started_at_ms: AtomicI64,
}

impl SteadyClock {
    /// Starts at the wall clock's time.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now(), started_at_ms: AtomicI64::new(wall_ms()) }
    }

    fn now_ms(&self) -> i64 {
        let elapsed_ms = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.started_at_ms.load(Ordering::Relaxed).saturating_add(elapsed_ms)
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        from_ms(self.now_ms())
    }

    fn step(&self) -> Option<i64> {
        let step = wall_ms() - self.now_ms();
        (step.unsigned_abs() > STEP_MIN.as_millis() as u64).then_some(step)
    }

    fn follow(&self, step_ms: i64) {
        self.started_at_ms.fetch_add(step_ms, Ordering::Relaxed);
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock that everything else takes its time from")]
fn wall_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Returns the time `ms` milliseconds after 1970-01-01 UTC; the nearest that can be written if
/// that lies beyond the calendar.
#[must_use]
pub fn from_ms(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// Returns the time from `now` until `at`; zero when that has passed.
#[must_use]
pub fn between(now: Timestamp, at: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(at.as_millisecond().saturating_sub(now.as_millisecond())).unwrap_or(0))
}

/// Returns `at` moved by `by`, to the millisecond.
#[must_use]
pub fn after(at: Timestamp, by: Duration) -> Timestamp {
    from_ms(at.as_millisecond().saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
}
