//! Ranges of user and group ids, one for each box, so that no other user of the host owns a box's
//! files and processes.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use domain::StoreId;
use parking_lot::Mutex;

use crate::{Error, Result};

/// Number of ids of a box: all that a 16 bit program can name.
pub(crate) const IDS_PER_BOX: u32 = 65_536;
/// Start of the default range: far above what hosts give to people, services and container
/// engines.
const FIRST_DEFAULT: u32 = 0x4000_0000;
/// Number of ranges by default: at least as many as a host can hold boxes.
const RANGES_DEFAULT: u32 = 8192;

/// Allocator of id ranges, one for each box.
#[derive(Debug, Clone)]
pub(crate) struct IdPool {
    first: u32,
    ranges: u32,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    used: HashSet<u32>,
    next: u32,
}

impl IdPool {
    /// Returns a pool of `subids`, the first id and their count. The first range taken depends on
    /// the store, so that two servers on one host do not start with the same ranges.
    pub(crate) fn new(subids: Option<(u32, u32)>, store: &StoreId) -> Result<IdPool> {
        let (first, count) = subids.unwrap_or((FIRST_DEFAULT, RANGES_DEFAULT * IDS_PER_BOX));
        let ranges = count / IDS_PER_BOX;
        if ranges == 0 || first < IDS_PER_BOX || first.checked_add(count - 1).is_none_or(|last| last == u32::MAX) {
            return Err(Error::Invalid(format!(
                "the subordinate ids {first}+{count} must be at least {IDS_PER_BOX}, begin above {IDS_PER_BOX}, and end below 4294967295"
            )));
        }
        let mut hasher = DefaultHasher::new();
        store.hash(&mut hasher);
        let next = u32::try_from(hasher.finish() % u64::from(ranges)).unwrap_or(0);
        Ok(IdPool { first, ranges, state: Arc::new(Mutex::new(State { used: HashSet::new(), next })) })
    }

    /// Takes a free range, and returns its first id.
    pub(crate) fn take(&self) -> Result<u32> {
        let mut state = self.state.lock();
        for step in 0..self.ranges {
            let index = (state.next + step) % self.ranges;
            let base = self.first + index * IDS_PER_BOX;
            if state.used.insert(base) {
                state.next = (index + 1) % self.ranges;
                return Ok(base);
            }
        }
        Err(Error::Unavailable(format!("all {} ranges of user ids are in use", self.ranges)))
    }

    /// Marks the range of a box that was found as used.
    pub(crate) fn mark(&self, base: u32) {
        self.state.lock().used.insert(base);
    }

    /// Frees the range of a box of which nothing is left.
    pub(crate) fn give_back(&self, base: u32) {
        self.state.lock().used.remove(&base);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn pool(count: u32) -> IdPool {
        IdPool::new(Some((100_000, count)), &StoreId::from_entropy([1; 10])).unwrap()
    }

    #[test]
    fn no_range_is_given_twice_until_it_comes_back() {
        let pool = pool(3 * IDS_PER_BOX + 5);
        let mut taken = [pool.take().unwrap(), pool.take().unwrap(), pool.take().unwrap()];
        assert!(matches!(pool.take(), Err(Error::Unavailable(_))));
        pool.give_back(taken[1]);
        assert_eq!(pool.take().unwrap(), taken[1]);
        taken.sort_unstable();
        assert_eq!(taken, [100_000, 165_536, 231_072]);
    }

    #[test]
    fn the_range_of_a_box_that_was_found_is_not_given_out() {
        let pool = pool(2 * IDS_PER_BOX);
        pool.mark(100_000);
        assert_eq!(pool.take().unwrap(), 165_536);
        assert!(pool.take().is_err());
    }

    #[test]
    fn ids_that_cannot_hold_a_box_are_refused() {
        for (first, count) in [(100_000, 65_535), (0, 65_536), (u32::MAX - 65_535, 65_536), (u32::MAX, 65_536)] {
            assert!(IdPool::new(Some((first, count)), &StoreId::from_entropy([1; 10])).is_err(), "{first}+{count}");
        }
    }
}
