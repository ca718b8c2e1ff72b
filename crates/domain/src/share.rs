//! Shares of a budget that many holders draw on.

/// The part of a budget that one holder may have: up to `times` what it leaves free.
///
/// The limit moves with the load (a *dynamic threshold*, known from switches that share one buffer
/// among their ports). One holder alone gets most of the budget, and each gets less the more there
/// are. Some is always left for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    times: u64,
}

impl Share {
    /// Creates a share of up to `times` what is left free.
    #[must_use]
    pub const fn times_free(times: u64) -> Self {
        Self { times }
    }

    /// Returns whether a holder of `held` may take `more` of the `free` rest of the budget, all
    /// three in the same unit.
    #[must_use]
    pub const fn admits(self, free: u64, held: u64, more: u64) -> bool {
        match free.checked_sub(more) {
            Some(left) => held.saturating_add(more) <= self.times.saturating_mul(left),
            None => false,
        }
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    const SHARE: Share = Share::times_free(2);

    /// Lets each of `holders` take `step` in turns while it may; returns their holdings.
    fn fill(total: u64, holders: usize, step: u64) -> Vec<u64> {
        let mut held = vec![0; holders];
        loop {
            let mut took_any = false;
            for index in 0..holders {
                let free = total - held.iter().sum::<u64>();
                if SHARE.admits(free, held[index], step) {
                    held[index] += step;
                    took_any = true;
                }
            }
            if !took_any {
                return held;
            }
        }
    }

    #[test]
    fn one_alone_gets_two_thirds() {
        assert_eq!(fill(300, 1, 1), [200]);
        assert!(!SHARE.admits(100, 200, 1));
        assert!(SHARE.admits(100, 0, 66) && !SHARE.admits(100, 0, 67), "a newcomer finds room");
    }

    #[test]
    fn nothing_is_admitted_beyond_what_is_free() {
        for (free, held, more) in [(0, 0, 1), (10, 0, 11), (0, u64::MAX, u64::MAX), (5, u64::MAX, 5)] {
            assert!(!SHARE.admits(free, held, more), "{free} {held} {more}");
        }
        assert!(SHARE.admits(0, 0, 0));
    }

    proptest! {
        #[test]
        fn whatever_others_hold_a_newcomer_finds_its_part(holders in 1usize..40, step in 1u64..64) {
            let total = 1 << 20;
            let held = fill(total, holders, step);
            let free = total - held.iter().sum::<u64>();
            // With k holders, each leaves at least one part in 2k + 1.
            prop_assert!(free >= total / (2 * holders as u64 + 1));
            prop_assert!(SHARE.admits(free, 0, free / 2));
        }

        #[test]
        fn who_came_first_gets_no_more_than_who_came_later(holders in 2usize..40, step in 1u64..64) {
            let held = fill(1 << 20, holders, step);
            let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
            prop_assert!(most - least <= step, "{held:?}");
        }

        #[test]
        fn any_order_of_taking_and_giving_back_stays_within(steps in prop::collection::vec((0usize..5, 1u64..100_000, any::<bool>()), 1..200)) {
            let total = 1u64 << 18;
            let mut held = [0u64; 5];
            for (who, bytes, takes) in steps {
                let free = total - held.iter().sum::<u64>();
                if !takes {
                    held[who] = held[who].saturating_sub(bytes);
                } else if SHARE.admits(free, held[who], bytes) {
                    held[who] += bytes;
                    prop_assert!(held[who] <= 2 * (free - bytes));
                }
                prop_assert!(held.iter().sum::<u64>() < total);
            }
        }
    }
}
