//! Durations and their percentiles.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Durations of repeated calls.
#[derive(Debug, Default)]
pub struct Samples(Vec<Duration>);

/// Percentiles of durations, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50_us: u64,
    pub p95_us: u64,
    pub p99_us: u64,
}

impl Samples {
    pub fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the percentiles; `None` without samples.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        Some(Percentiles {
            p50_us: percentile(&sorted, 50)?,
            p95_us: percentile(&sorted, 95)?,
            p99_us: percentile(&sorted, 99)?,
        })
    }
}

/// Returns the duration, in microseconds, at `percent` of the sorted ones; `None` without any.
fn percentile(sorted: &[Duration], percent: usize) -> Option<u64> {
    let index = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
    u64::try_from(sorted[index].as_micros()).ok()
}

impl Percentiles {
    /// Adds each percentile to its counterpart.
    #[must_use]
    pub fn plus(self, other: Percentiles) -> Percentiles {
        Percentiles {
            p50_us: self.p50_us + other.p50_us,
            p95_us: self.p95_us + other.p95_us,
            p99_us: self.p99_us + other.p99_us,
        }
    }
}

/// Returns the median over several rounds, percentile by percentile, so that one round in which
/// the machine was busy with something else does not count.
pub fn typical(rounds: &[Percentiles]) -> Option<Percentiles> {
    Some(Percentiles {
        p50_us: median(rounds.iter().map(|round| round.p50_us))?,
        p95_us: median(rounds.iter().map(|round| round.p95_us))?,
        p99_us: median(rounds.iter().map(|round| round.p99_us))?,
    })
}

/// Returns the middle of the values, the higher one of two; `None` without any.
fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use super::{Percentiles, Samples, typical};

    #[test]
    fn percentiles_of_nothing_are_nothing() {
        assert_eq!(Samples::default().percentiles(), None);
        assert_eq!(typical(&[]), None);
    }

    #[test]
    fn percentiles_come_from_the_sorted_times() {
        let mut samples = Samples::default();
        (1..=200).rev().for_each(|us| samples.add(Duration::from_micros(us)));
        assert_eq!(samples.percentiles(), Some(Percentiles { p50_us: 101, p95_us: 191, p99_us: 199 }));
        let mut one = Samples::default();
        one.add(Duration::from_micros(7));
        assert_eq!(one.percentiles(), Some(Percentiles { p50_us: 7, p95_us: 7, p99_us: 7 }));
    }

    #[test]
    fn one_noisy_round_does_not_count() {
        let round = |us| Percentiles { p50_us: us, p95_us: us, p99_us: us };
        assert_eq!(typical(&[round(2), round(900), round(1)]), Some(round(2)));
    }
}
