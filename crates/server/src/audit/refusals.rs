//! Audit rows of refused keys: one row per source and minute, however often it tries.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;

use domain::Timestamp;
use parking_lot::{Mutex, MutexGuard};

/// Sources that have a row of their own in one minute. Those beyond share one row, so that no
/// number of addresses pushes other rows out of the history.
const SOURCES_MAX: usize = 256;
const MINUTE_MS: i64 = 60_000;

/// Source of a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Client address; `None` without a network.
    Address(Option<IpAddr>),
    /// Any source beyond those with a row of their own.
    Others,
}

/// Result of counting a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// First refusal of the source in this minute. The caller writes a row and reports it by
    /// [`Refusals::written`].
    First(Source),
    /// A later refusal. It was counted for the row of the first.
    Again,
}

/// Sources of refusals in the current minute.
#[derive(Debug, Default)]
pub struct Refusals {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sources: HashMap<Source, Tally>,
    /// Rows of past minutes whose counts are outdated: at most one for each source between two
    /// calls of [`Refusals::take_untold`].
    finished: Vec<Untold>,
}

/// Row whose count has to be updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untold {
    /// Id of the row.
    pub row: u64,
    /// Refusals of its source in its minute so far.
    pub count: u64,
    /// Detail of the first refusal, without a count.
    pub first: String,
}

#[derive(Debug, Default)]
struct Tally {
    minute: i64,
    count: u64,
    /// Count that the row shows.
    told: u64,
    row: Option<u64>,
    first: String,
}

impl Tally {
    fn untold(&self) -> Option<Untold> {
        let row = self.row.filter(|_| self.count > self.told)?;
        Some(Untold { row, count: self.count, first: self.first.clone() })
    }
}

impl Refusals {
    /// Counts a refusal. `first` is the detail to keep if it is the first of its minute.
    pub fn count(&self, address: Option<IpAddr>, now: Timestamp, first: &str) -> Seen {
        let minute = minute(now);
        let state = &mut *self.lock();
        let mut source = Source::Address(address);
        if !state.sources.contains_key(&source) && state.sources.len() >= SOURCES_MAX {
            source = Source::Others;
        }
        let tally = state.sources.entry(source).or_default();
        if tally.minute == minute && tally.count > 0 {
            tally.count += 1;
            return Seen::Again;
        }
        state.finished.extend(tally.untold());
        *tally = Tally { minute, count: 1, told: 1, row: None, first: first.to_owned() };
        Seen::First(source)
    }

    /// Records the id of the row for `source`. With `None`, the next refusal in this minute
    /// tries to write one again.
    pub fn written(&self, source: Source, row: Option<u64>) {
        let state = &mut *self.lock();
        match (row, state.sources.get_mut(&source)) {
            (Some(row), Some(tally)) => tally.row = Some(row),
            (None, Some(_)) => {
                state.sources.remove(&source);
            }
            (_, None) => {}
        }
    }

    /// Returns the rows whose counts have to be updated. Forgets the sources of earlier
    /// minutes, so it has to be called more than once a minute.
    pub fn take_untold(&self, now: Timestamp) -> Vec<Untold> {
        let minute = minute(now);
        let state = &mut *self.lock();
        let mut untold = mem::take(&mut state.finished);
        for tally in state.sources.values_mut() {
            if let Some(row) = tally.untold() {
                untold.push(row);
                tally.told = tally.count;
            }
        }
        state.sources.retain(|_, tally| tally.minute == minute);
        untold
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No panic can leave the counts inconsistent.
        self.state.lock()
    }
}

fn minute(at: Timestamp) -> i64 {
    at.as_millisecond().div_euclid(MINUTE_MS)
}

#[cfg(test)]
mod test {
    use std::net::Ipv4Addr;

    use super::*;
    use store::clock::from_ms;

    fn address(n: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::from_bits(n).into())
    }

    fn untold(row: u64, count: u64) -> Untold {
        Untold { row, count, first: "key=k".to_owned() }
    }

    #[test]
    fn a_source_has_one_row_a_minute_and_its_count_is_told_later() {
        let refusals = Refusals::default();
        let source = Source::Address(address(1));
        assert_eq!(refusals.count(address(1), from_ms(0), "key=k"), Seen::First(source));
        assert_eq!(refusals.count(address(1), from_ms(1), "key=k"), Seen::Again);
        refusals.written(source, Some(7));
        assert_eq!(refusals.take_untold(from_ms(2)), [untold(7, 2)]);
        assert_eq!(refusals.take_untold(from_ms(3)), []);
        assert_eq!(refusals.count(address(1), from_ms(59_999), "key=k"), Seen::Again);
        assert_eq!(refusals.count(address(1), from_ms(60_000), "key=k"), Seen::First(source));
        assert_eq!(refusals.take_untold(from_ms(60_000)), [untold(7, 3)], "also when the minute is over");
        assert_eq!(refusals.count(address(2), from_ms(60_000), "key=k"), Seen::First(Source::Address(address(2))));
    }

    #[test]
    fn a_row_that_could_not_be_written_is_tried_again() {
        let refusals = Refusals::default();
        let Seen::First(source) = refusals.count(None, from_ms(0), "key=k") else { panic!("it is the first") };
        refusals.written(source, None);
        assert_eq!(refusals.count(None, from_ms(1), "key=k"), Seen::First(source));
    }

    #[test]
    fn any_number_of_sources_makes_a_bounded_number_of_rows() {
        let refusals = Refusals::default();
        let rows = (0..100_000).filter(|n| refusals.count(address(*n), from_ms(5), "key=k") != Seen::Again).count();
        assert_eq!(rows, SOURCES_MAX + 1);
        assert_eq!(refusals.lock().sources.len(), SOURCES_MAX + 1);
        refusals.take_untold(from_ms(MINUTE_MS));
        assert!(refusals.lock().sources.is_empty(), "a minute later all is forgotten");
    }
}
