//! Rate limit of one caller: a bucket of tokens that fills steadily.

use std::num::NonZeroU32;
use std::time::Duration;

/// Units of a token. A rate of `n` tokens a minute is then exactly `n` units a nanosecond, so
/// nothing is rounded and nothing drifts.
const PARTS_PER_TOKEN: u64 = 60_000_000_000;

/// Fill rate and capacity of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens added per minute.
    pub per_minute: NonZeroU32,
    /// Capacity of a bucket, in tokens.
    pub burst: NonZeroU32,
}

impl Rate {
    fn capacity(self) -> u64 {
        // At most 2^32 times 6 * 10^10, which is less than 2^68: saturates only for a burst beyond
        // any configuration.
        u64::from(self.burst.get()).saturating_mul(PARTS_PER_TOKEN)
    }

    /// Returns the time in which `parts` units are added, rounded up.
    fn time_for(self, parts: u64) -> Duration {
        Duration::from_nanos(parts.div_ceil(u64::from(self.per_minute.get())))
    }

    /// Returns the time in which an empty bucket fills, rounded up to a nanosecond.
    #[must_use]
    pub fn time_to_fill(self) -> Duration {
        self.time_for(self.capacity())
    }
}

/// The tokens of one caller. A request takes one; [`Rate`] says how they come back.
///
/// `now` is the duration since any fixed instant, the same for all calls. A step back adds and
/// removes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Units in the bucket at `at_ns`.
    level: u64,
    /// Latest time that was counted, in nanoseconds.
    at_ns: u64,
}

/// A bucket without a whole token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bucket is empty for another {wait:?}")]
pub struct Empty {
    /// Time until the bucket has a token, if no other request takes it.
    pub wait: Duration,
}

impl Bucket {
    /// Creates a full bucket.
    #[must_use]
    pub fn full(rate: Rate, now: Duration) -> Self {
        Self { level: rate.capacity(), at_ns: nanos(now) }
    }

    /// Takes a token and returns the number of whole tokens left.
    ///
    /// # Errors
    /// [`Empty`] if there is none; the bucket then stays as it is.
    pub fn take(&mut self, rate: Rate, now: Duration) -> Result<u32, Empty> {
        self.look(rate, now)?;
        self.level -= PARTS_PER_TOKEN;
        Ok(self.tokens())
    }

    /// Returns the number of whole tokens in the bucket without taking one.
    ///
    /// # Errors
    /// [`Empty`] if there is none.
    pub fn look(&mut self, rate: Rate, now: Duration) -> Result<u32, Empty> {
        let now_ns = nanos(now);
        // A time before the latest one adds nothing and removes nothing.
        let came = now_ns.saturating_sub(self.at_ns).saturating_mul(u64::from(rate.per_minute.get()));
        self.level = self.level.saturating_add(came).min(rate.capacity());
        self.at_ns = self.at_ns.max(now_ns);
        if self.level < PARTS_PER_TOKEN {
            let missing = rate.time_for(PARTS_PER_TOKEN - self.level);
            // After a step back, the clock has to reach the latest time again first.
            let behind = Duration::from_nanos(self.at_ns - now_ns);
            return Err(Empty { wait: missing.saturating_add(behind) });
        }
        Ok(self.tokens())
    }

    /// Returns the time at which the bucket is full if no request takes from it. It then equals a
    /// new one, so dropping it gives its caller no extra tokens.
    #[must_use]
    pub fn full_at(&self, rate: Rate) -> Duration {
        let missing = rate.time_for(rate.capacity().saturating_sub(self.level));
        Duration::from_nanos(self.at_ns).saturating_add(missing)
    }

    fn tokens(&self) -> u32 {
        u32::try_from(self.level / PARTS_PER_TOKEN).unwrap_or(u32::MAX)
    }
}

/// Converts to nanoseconds; `u64` holds 584 years of them.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn rate(per_minute: u32, burst: u32) -> Rate {
        Rate { per_minute: NonZeroU32::new(per_minute).unwrap(), burst: NonZeroU32::new(burst).unwrap() }
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_is_followed_by_the_steady_rate() {
        let rate = rate(120, 3);
        let mut bucket = Bucket::full(rate, ms(1000));
        assert_eq!([(); 3].map(|()| bucket.take(rate, ms(1000))), [Ok(2), Ok(1), Ok(0)]);
        assert_eq!(bucket.take(rate, ms(1000)), Err(Empty { wait: ms(500) }));
        assert_eq!(bucket.take(rate, ms(1499)), Err(Empty { wait: ms(1) }));
        assert_eq!(bucket.take(rate, ms(1500)), Ok(0));
        assert_eq!(bucket.take(rate, ms(1500)), Err(Empty { wait: ms(500) }));
        assert_eq!(bucket.full_at(rate), ms(3000));
        assert_eq!(bucket.look(rate, ms(3000)), Ok(3));
        assert_eq!(bucket.look(rate, ms(1_000_000)), Ok(3), "it holds no more than the burst");
    }

    #[test]
    fn to_look_takes_nothing() {
        let rate = rate(60, 1);
        let mut bucket = Bucket::full(rate, ms(0));
        assert_eq!((bucket.look(rate, ms(0)), bucket.look(rate, ms(0))), (Ok(1), Ok(1)));
        assert_eq!(bucket.take(rate, ms(0)), Ok(0));
        assert_eq!(bucket.look(rate, ms(0)), Err(Empty { wait: ms(1000) }));
    }

    #[test]
    fn a_rate_that_divides_no_minute_does_not_drift() {
        let rate = rate(7, 2);
        let mut bucket = Bucket::full(rate, ms(0));
        // One attempt every millisecond for ten minutes.
        let taken = (0..=600_000).filter(|now| bucket.take(rate, ms(*now)).is_ok()).count();
        assert_eq!(taken, 72, "two, and seven a minute");
        let rate = self::rate(7, 1);
        let mut exact = Bucket::full(rate, ms(0));
        let mut now = ms(0);
        for _ in 0..700 {
            exact.take(rate, now).unwrap();
            now += exact.look(rate, now).unwrap_err().wait;
        }
        assert!(now >= ms(6_000_000) && now < ms(6_000_001), "{now:?}");
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let rate = rate(60, 1);
        let mut bucket = Bucket::full(rate, ms(10_000));
        bucket.take(rate, ms(10_000)).unwrap();
        assert_eq!(bucket.take(rate, ms(5_000)), Err(Empty { wait: ms(6_000) }));
        assert_eq!(bucket.take(rate, ms(10_999)), Err(Empty { wait: ms(1) }));
        assert_eq!(bucket.take(rate, ms(11_000)), Ok(0));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let rate = rate(u32::MAX, u32::MAX);
        let mut bucket = Bucket::full(rate, ms(0));
        assert!(bucket.take(rate, Duration::MAX).is_ok());
        assert!(bucket.take(rate, Duration::ZERO).is_ok());
        assert!(bucket.full_at(rate) > ms(0));
        let slow = self::rate(1, 1_000_000);
        assert_eq!(slow.time_to_fill(), Duration::from_secs(60_000_000));
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_the_burst_and_what_came(
            per_minute in 1u32..100_000,
            burst in 1u32..50,
            steps in proptest::collection::vec(0u64..3_000_000_000, 1..200),
        ) {
            let rate = rate(per_minute, burst);
            let mut bucket = Bucket::full(rate, Duration::ZERO);
            let mut now = 0;
            let mut taken = Vec::new();
            for step in steps {
                now += step;
                if bucket.take(rate, Duration::from_nanos(now)).is_ok() {
                    taken.push(now);
                }
            }
            for (first, start) in taken.iter().enumerate() {
                for (count, end) in taken[first..].iter().enumerate() {
                    let came = u128::from(end - start) * u128::from(per_minute) / u128::from(PARTS_PER_TOKEN);
                    prop_assert!((count as u128) < u128::from(burst) + came);
                }
            }
        }

        #[test]
        fn a_clock_that_jumps_never_gives_more_than_the_time_it_reached(
            per_minute in 1u32..100_000,
            burst in 1u32..20,
            times in proptest::collection::vec(0u64..60_000_000_000, 1..200),
        ) {
            let rate = rate(per_minute, burst);
            let mut bucket = Bucket::full(rate, Duration::ZERO);
            let taken = times.iter().filter(|now| bucket.take(rate, Duration::from_nanos(**now)).is_ok()).count();
            let latest = u128::from(*times.iter().max().unwrap());
            let came = latest * u128::from(per_minute) / u128::from(PARTS_PER_TOKEN);
            prop_assert!(taken as u128 <= u128::from(burst) + came);
        }

        #[test]
        fn the_wait_is_true_to_the_nanosecond(per_minute in 1u32..1_000_000, burst in 1u32..9, start in 0u64..1 << 60) {
            let rate = rate(per_minute, burst);
            let mut bucket = Bucket::full(rate, Duration::from_nanos(start));
            let now = Duration::from_nanos(start);
            while bucket.take(rate, now).is_ok() {}
            let wait = bucket.look(rate, now).unwrap_err().wait;
            let mut early = bucket;
            prop_assert!(early.take(rate, now + wait - Duration::from_nanos(1)).is_err());
            prop_assert!(bucket.take(rate, now + wait).is_ok());
        }

        #[test]
        fn later_is_never_worse(per_minute in 1u32..1_000_000, burst in 1u32..100, takes in 0u32..100, a: u32, b: u32) {
            let rate = rate(per_minute, burst);
            let mut bucket = Bucket::full(rate, Duration::ZERO);
            for _ in 0..takes {
                let _ = bucket.take(rate, Duration::ZERO);
            }
            let tokens = |bucket: Bucket, at: u32| {
                let mut bucket = bucket;
                bucket.look(rate, Duration::from_nanos(u64::from(at))).unwrap_or(0)
            };
            prop_assert!(tokens(bucket, a.min(b)) <= tokens(bucket, a.max(b)));
        }
    }
}
