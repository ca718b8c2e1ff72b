//! The server's idea of now.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use domain::Timestamp;

/// A wall clock that disagrees with ours by more than this has been stepped.
pub const STEP_MIN: Duration = Duration::from_secs(5);

/// Tells the time. Code that has effects takes it from here; pure code takes
/// `now` as an argument.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Now, in UTC, to the millisecond. Never goes back, and never jumps but by
    /// [`Clock::follow`].
    fn now(&self) -> Timestamp;

    /// By how many milliseconds the wall clock has been stepped away from ours,
    /// if by more than [`STEP_MIN`].
    fn step(&self) -> Option<i64>;

    /// From now on [`Clock::now`] includes the step. The caller has moved what is
    /// stored by the same amount: should we stop between the two, the next start
    /// trusts what is stored and the wall clock, and they fit.
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

/// The time so many milliseconds after 1970-01-01 UTC; the nearest that can be
/// written where that lies beyond the calendar.
#[must_use]
pub fn from_ms(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// From `now` until `at`; nothing when that has passed.
#[must_use]
pub fn between(now: Timestamp, at: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(at.as_millisecond().saturating_sub(now.as_millisecond())).unwrap_or(0))
}

/// `at` moved by `by`, to the millisecond.
#[must_use]
pub fn after(at: Timestamp, by: Duration) -> Timestamp {
    from_ms(at.as_millisecond().saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
}
