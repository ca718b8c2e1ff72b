//! Refused keys: a row for each source and minute, however often it tries.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::Timestamp;

/// Sources that are counted by themselves in one minute. Those beyond share one
/// row, so that no number of addresses pushes the rest out of the history.
const SOURCES_MAX: usize = 256;
const MINUTE_MS: i64 = 60_000;

/// Where a refused request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// This address; `None` without a network.
    Address(Option<IpAddr>),
    /// One of more than are counted by themselves.
    Others,
}

/// Whether a source was seen before in its minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It has no row yet: write one, and tell by [`Refusals::written`].
    First(Source),
    /// It has one, or will have; it was counted.
    Again,
}

/// The sources of this minute.
#[derive(Debug, Default)]
pub struct Refusals {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sources: HashMap<Source, Tally>,
    /// Rows of a minute that is over: at most one for each source between two
    /// looks.
    finished: Vec<Untold>,
}

/// A row that tells too little.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untold {
    /// Which.
    pub row: u64,
    /// How many it should tell of.
    pub count: u64,
    /// What else was said of the first of them.
    pub first: String,
}

#[derive(Debug, Default)]
struct Tally {
    minute: i64,
    count: u64,
    /// How many of them the row tells of.
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
    /// Counts one, of which `first` is said if it is the first.
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

    /// Its row is written. Without one, what follows in this minute tries again.
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

    /// Rows that tell too little. Forgets
    /// the sources of earlier minutes, so it has to be asked more often than that.
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
        // Each statement leaves the counts right.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn minute(at: Timestamp) -> i64 {
    at.as_millisecond().div_euclid(MINUTE_MS)
}

#[cfg(test)]
mod test {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::clock::from_ms;

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
