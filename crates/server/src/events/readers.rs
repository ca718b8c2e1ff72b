//! Places of readers, and how they are shared.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use domain::{NoPlace, Places};

use crate::budget::Holders;

/// The most readers at once: each holds a connection, and each is woken by every event.
const SUBSCRIBERS_MAX: usize = 512;
/// Places of readers; a caller may have as many as it leaves free.
const PLACES: Places = Places { all: SUBSCRIBERS_MAX, of_one: None };
/// Multiple of the free places that all callers at one address may have together: callers cost
/// nothing to make up.
const ADDRESS_TIMES_FREE: usize = 4;

/// Reason why another reader is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// All places are taken.
    #[error("the maximum of {SUBSCRIBERS_MAX} clients are already listening; try again later")]
    All,
    /// The caller, or its address, has its share of them.
    #[error("you already use your share of the {SUBSCRIBERS_MAX} event streams; close one that you no longer read")]
    Share,
}

impl From<NoPlace> for Full {
    fn from(no_place: NoPlace) -> Self {
        match no_place {
            NoPlace::Queue => Self::All,
            NoPlace::Share => Self::Share,
        }
    }
}

/// Counts of the present readers.
#[derive(Debug, Default)]
pub(super) struct Readers {
    all: usize,
    /// Readers by holder, without holders of none.
    held: HashMap<u64, usize>,
}

impl Readers {
    /// Returns the number of readers.
    pub(super) fn count(&self) -> usize {
        self.all
    }

    /// Returns the number of readers of one holder.
    fn count_of(&self, key: u64) -> usize {
        self.held.get(&key).copied().unwrap_or(0)
    }

    /// Takes a place for a reader.
    ///
    /// # Errors
    /// [`Full`] if there is no place, or none in the share of the holders.
    pub(super) fn enter(&mut self, holders: Holders) -> Result<(), Full> {
        let [caller, address] = holders.keys();
        PLACES.admit(self.all, self.count_of(caller))?;
        if self.count_of(address) >= ADDRESS_TIMES_FREE * (PLACES.all - self.all) {
            return Err(Full::Share);
        }
        self.all += 1;
        for key in [caller, address] {
            *self.held.entry(key).or_default() += 1;
        }
        Ok(())
    }

    /// Gives back the place of a reader.
    pub(super) fn leave(&mut self, holders: Holders) {
        self.all -= 1;
        for key in holders.keys() {
            if let Entry::Occupied(mut held) = self.held.entry(key) {
                *held.get_mut() -= 1;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod test {
    use domain::OwnerId;

    use super::*;
    use crate::budget::{Budget, Caller};

    /// Takes places until one is refused, and returns how many, and why no more.
    fn fill(readers: &mut Readers, holders: impl Fn(usize) -> Holders) -> (usize, Full) {
        (0..).find_map(|n| readers.enter(holders(n)).err().map(|why| (n, why))).unwrap()
    }

    #[test]
    fn no_caller_and_no_address_takes_the_places_of_all_listeners() {
        let budget = Budget::new(0);
        let of = |owner: &str, address: [u8; 4]| {
            let (owner, address) = (OwnerId::parse(owner).unwrap(), Some(address.into()));
            budget.account(Caller::Owner(&owner), address).holders()
        };
        let mut readers = Readers::default();
        let (own, why) = fill(&mut readers, |_| of("one", [192, 0, 2, 1]));
        assert_eq!((own, why), (SUBSCRIBERS_MAX / 2, Full::Share));
        // With made-up owners, its address gets four fifths.
        let (more, why) = fill(&mut readers, |n| of(&format!("made-up-{n}"), [192, 0, 2, 1]));
        assert_eq!((own + more, why), (410, Full::Share));
        readers.enter(of("two", [192, 0, 2, 2])).unwrap();
        assert_eq!(readers.count(), 411);
        readers.leave(of("two", [192, 0, 2, 2]));
        for _ in 0..own {
            readers.leave(of("one", [192, 0, 2, 1]));
        }
        for n in 0..more {
            readers.leave(of(&format!("made-up-{n}"), [192, 0, 2, 1]));
        }
        assert!(readers.count() == 0 && readers.held.is_empty(), "{readers:?}");
    }

    #[test]
    fn the_last_place_can_be_taken() {
        let budget = Budget::new(0);
        let mut readers = Readers::default();
        let address = |n: usize| Some(std::net::Ipv4Addr::from_bits(u32::try_from(n).unwrap()).into());
        let (all, why) = fill(&mut readers, |n| budget.account(Caller::Address(address(n)), address(n)).holders());
        assert_eq!((all, why), (SUBSCRIBERS_MAX, Full::All));
    }
}
