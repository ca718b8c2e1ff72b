//! The last looks at the use of resources: loads are computed between two of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::SandboxId;
use parking_lot::Mutex;
use providers::BoxStats;
use tokio::sync::Semaphore;

/// Least time between two looks that a load is computed of: a shorter one would say more of the
/// scheduler than of the sandbox.
pub(in crate::control) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most sandboxes whose last look is kept. Beyond it old looks are forgotten.
const LOOKS_MAX: usize = 20_000;
/// Time after which a look may be forgotten.
const OLD: Duration = Duration::from_secs(600);
/// Least time between two measurements of one disk.
const DISK_EVERY: Duration = Duration::from_secs(10);
/// Multiple of the time that the measurement of a disk took before it is repeated.
const DISK_PAUSE: u32 = 20;

/// Disks that may be measured at once: each keeps a thread busy, for up to four seconds.
const DISKS_AT_ONCE: usize = 2;

/// Use of processors over a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Processor time for each unit of time: 1.5 for one and a half processors.
    pub processors: f64,
    /// Time that it is over.
    pub window: Duration,
}

/// Resources that a sandbox used at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::control) struct Look {
    pub(in crate::control) at: Instant,
    pub(in crate::control) used: BoxStats,
    pub(in crate::control) load: Option<Load>,
}

/// Last looks at sandboxes.
#[derive(Debug)]
pub(in crate::control) struct Samples {
    known: Mutex<HashMap<SandboxId, Look>>,
    disks: Mutex<HashMap<SandboxId, Disk>>,
    /// Turns to measure disks.
    pub(in crate::control) disk_turns: Semaphore,
}

impl Default for Samples {
    fn default() -> Self {
        Samples { known: Mutex::default(), disks: Mutex::default(), disk_turns: Semaphore::new(DISKS_AT_ONCE) }
    }
}

/// Measurement of a disk.
#[derive(Debug, Clone, Copy)]
struct Disk {
    at: Instant,
    took: Duration,
    bytes: Option<u64>,
}

impl Samples {
    /// Returns the last look if it is too fresh for another one.
    pub(in crate::control) fn fresh(&self, id: &SandboxId, now: Instant) -> Option<Look> {
        self.known.lock().get(id).copied().filter(|look| is_fresh(look, now))
    }

    /// Keeps what a sandbox of this `age` uses now, with its load since the look before.
    pub(in crate::control) fn keep(&self, id: &SandboxId, used: BoxStats, age: Duration, now: Instant) -> Look {
        let mut known = self.known.lock();
        let before = known.get(id).copied();
        if let Some(before) = before.filter(|look| is_fresh(look, now)) {
            return Look { used, ..before };
        }
        let (since, window) = match before {
            Some(before) => (before.used.cpu, now.saturating_duration_since(before.at)),
            None => (Some(Duration::ZERO), age),
        };
        let look = Look { at: now, used, load: load(since, used.cpu, window) };
        make_room(&mut known, |look| look.at, now);
        known.insert(id.clone(), look);
        look
    }

    /// Returns the last measurement of a disk if it is too fresh for another one: its bytes, if they
    /// could be measured.
    pub(in crate::control) fn disk(&self, id: &SandboxId, now: Instant) -> Option<Option<u64>> {
        let disk = self.disks.lock().get(id).copied()?;
        let lasts = DISK_EVERY.max(disk.took.saturating_mul(DISK_PAUSE));
        (now.saturating_duration_since(disk.at) < lasts).then_some(disk.bytes)
    }

    /// Returns the last measurement of a disk, however old.
    pub(in crate::control) fn old_disk(&self, id: &SandboxId) -> Option<u64> {
        self.disks.lock().get(id)?.bytes
    }

    /// Keeps the measurement of a disk that began at `begun`.
    pub(in crate::control) fn keep_disk(&self, id: &SandboxId, bytes: Option<u64>, begun: Instant, now: Instant) {
        let mut disks = self.disks.lock();
        make_room(&mut disks, |disk| disk.at, now);
        disks.insert(id.clone(), Disk { at: now, took: now.saturating_duration_since(begun), bytes });
    }

    /// Forgets a sandbox that has ended.
    pub(in crate::control) fn forget(&self, id: &SandboxId) {
        self.known.lock().remove(id);
        self.disks.lock().remove(id);
    }
}

fn is_fresh(look: &Look, now: Instant) -> bool {
    now.saturating_duration_since(look.at) < LOOK_EVERY
}

/// Computes the load between two readings of the processor time; `None` if one is missing or there
/// was no time between them. A count over processes can fall when one ends unnoticed.
fn load(before: Option<Duration>, now: Option<Duration>, window: Duration) -> Option<Load> {
    let used = now?.saturating_sub(before?);
    (!window.is_zero()).then(|| Load { processors: used.as_secs_f64() / window.as_secs_f64(), window })
}

/// Removes old entries of a full map, and all if none is old.
fn make_room<T>(map: &mut HashMap<SandboxId, T>, at: impl Fn(&T) -> Instant, now: Instant) {
    if map.len() < LOOKS_MAX {
        return;
    }
    map.retain(|_, entry| now.saturating_duration_since(at(entry)) < OLD);
    if map.len() >= LOOKS_MAX {
        map.clear();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn used(cpu_ms: u64) -> BoxStats {
        BoxStats { cpu: Some(Duration::from_millis(cpu_ms)), ..BoxStats::default() }
    }

    fn processors(look: Look) -> f64 {
        (look.load.unwrap().processors * 1000.0).round() / 1000.0
    }

    #[test]
    fn a_load_is_over_the_time_since_the_look_before_and_first_since_the_spawn() {
        let (looks, id, start) = (Samples::default(), SandboxId::from_entropy([1; 10]), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let first = looks.keep(&id, used(2000), Duration::from_secs(4), at(0));
        assert_eq!((processors(first), first.load.unwrap().window), (0.5, Duration::from_secs(4)));
        let second = looks.keep(&id, used(3500), Duration::from_secs(5), at(1000));
        assert_eq!((processors(second), second.load.unwrap().window), (1.5, Duration::from_secs(1)));
    }

    #[test]
    fn a_look_that_follows_at_once_does_not_shorten_the_window_of_the_next_one() {
        let (looks, id, start) = (Samples::default(), SandboxId::from_entropy([1; 10]), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        looks.keep(&id, used(0), Duration::from_secs(1), at(0));
        let between = looks.keep(&id, used(100), Duration::from_secs(1), at(100));
        assert_eq!((between.used, processors(between)), (used(100), 0.0));
        assert!(looks.fresh(&id, at(499)).is_some() && looks.fresh(&id, at(500)).is_none());
        let later = looks.keep(&id, used(600), Duration::from_secs(2), at(1000));
        assert_eq!((processors(later), later.load.unwrap().window), (0.6, Duration::from_secs(1)));
    }

    #[test]
    fn a_count_that_falls_is_no_load_and_one_that_is_missing_has_none() {
        let (looks, id, start) = (Samples::default(), SandboxId::from_entropy([1; 10]), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        looks.keep(&id, used(1000), Duration::from_secs(1), at(0));
        assert_eq!(processors(looks.keep(&id, used(400), Duration::from_secs(1), at(1000))), 0.0);
        assert_eq!(looks.keep(&id, BoxStats::default(), Duration::from_secs(1), at(2000)).load, None);
        assert_eq!(looks.keep(&id, used(9), Duration::from_secs(1), at(3000)).load, None);
    }

    #[test]
    fn a_disk_that_takes_long_to_measure_is_measured_rarely() {
        let (looks, id, start) = (Samples::default(), SandboxId::from_entropy([1; 10]), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        assert_eq!(looks.disk(&id, at(0)), None);
        looks.keep_disk(&id, Some(7), at(0), at(0));
        assert_eq!((looks.disk(&id, at(9)), looks.disk(&id, at(10))), (Some(Some(7)), None));
        looks.keep_disk(&id, Some(8), at(10), at(14));
        assert_eq!(
            (looks.disk(&id, at(93)), looks.disk(&id, at(94)), looks.old_disk(&id)),
            (Some(Some(8)), None, Some(8))
        );
    }

    #[test]
    fn what_is_kept_is_bounded_and_ends_with_the_sandbox() {
        let (looks, now) = (Samples::default(), Instant::now());
        let id = |n: usize| {
            let mut entropy = [0; 10];
            entropy[..8].copy_from_slice(&n.to_be_bytes());
            SandboxId::from_entropy(entropy)
        };
        for n in 0..LOOKS_MAX + 10 {
            looks.keep(&id(n), used(1), Duration::from_secs(1), now);
        }
        assert!(looks.known.lock().len() <= LOOKS_MAX);
        looks.forget(&id(LOOKS_MAX + 9));
        assert!(looks.fresh(&id(LOOKS_MAX + 9), now).is_none() && looks.fresh(&id(LOOKS_MAX + 8), now).is_some());
    }
}
