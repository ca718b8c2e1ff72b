//! Fair shares of the processors: a box that uses more than others gets what they
//! leave.
//!
//! The kernel shares processors equally among boxes that want them, however long
//! each has had them. A command of a millisecond then waits for its turn behind every
//! box that computes without end, at each of its steps. So the weight of boxes that
//! use far more than the others is lowered while processors are short, and given back
//! when they use little. The groups above the boxes weigh as much as the boxes that ask for
//! processors: otherwise all boxes together would get what one container does. With processors to spare, weights mean nothing, and nothing
//! is read but one line of `/proc/stat`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use crate::local::cgroup::{Cgroups, CpuWeight};

/// Pause between two looks. It is short because a new box that computes without end has the usual
/// weight until the next look.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Number of looks over which the use of a box is averaged, each newer one counting for
/// more: a box that has just got little, because of its low weight, keeps that weight.
const LOOKS: u64 = 20;
/// Denominator of the idle fraction of processor time below which processors are short.
const IDLE_PARTS: u64 = 8;
/// Processor time within one look, in microseconds, below which a box asks for none:
/// its agent alone wakes up now and then.
const ACTIVE_US_MIN: u64 = 200;
/// Processor time within one look, in microseconds, up to which a box is never a heavy
/// one: a spawn and a few commands take as much.
const HEAVY_US_MIN: u64 = 5_000;

/// Balances the boxes of `cgroups` at every look, without end.
pub(super) async fn watch(cgroups: Cgroups) {
    let mut shares = Shares { cgroups, ..Shares::default() };
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if shares.processors_are_short() {
            // Reads hundreds of files, so off the async threads.
            let looked = tokio::task::spawn_blocking(move || {
                shares.balance();
                shares
            });
            let Ok(done) = looked.await else { return };
            shares = done;
        } else {
            // Old usage says nothing about the present.
            shares.total_us.clear();
            shares.used_us.clear();
        }
    }
}

#[derive(Debug, Default)]
struct Shares {
    cgroups: Cgroups,
    /// Idle and whole time of all processors so far, in clock ticks.
    ticks: (u64, u64),
    /// Time used by each box until the last look, in microseconds.
    total_us: HashMap<String, u64>,
    /// Time used by each box within a look, in microseconds, averaged.
    used_us: HashMap<String, u64>,
    /// Last known weight of each box.
    weights: HashMap<String, CpuWeight>,
    /// Number of boxes by which the groups above them were weighed last.
    active: u64,
}

impl Shares {
    fn processors_are_short(&mut self) -> bool {
        let Some(now) = fs::read_to_string("/proc/stat").ok().and_then(|stat| ticks(&stat)) else { return false };
        let idle = now.0.saturating_sub(self.ticks.0);
        let all = now.1.saturating_sub(self.ticks.1);
        self.ticks = now;
        idle.saturating_mul(IDLE_PARTS) < all
    }

    /// Sets the weights by the usage of the last looks.
    fn balance(&mut self) {
        let now: HashMap<String, u64> = self.cgroups.cpu_usages().into_iter().collect();
        let is_first = self.total_us.is_empty();
        let before = std::mem::replace(&mut self.total_us, now);
        if is_first {
            return;
        }
        self.weights.retain(|name, _| self.total_us.contains_key(name));
        self.used_us.retain(|name, _| self.total_us.contains_key(name));
        for (name, total) in &self.total_us {
            // A new box has used all of its time since the last look.
            let used = total.saturating_sub(before.get(name).copied().unwrap_or(0));
            let mean = averaged(self.used_us.get(name).copied(), used);
            self.used_us.insert(name.clone(), mean);
        }
        let active = active(self.used_us.values().copied());
        if self.active != active && self.cgroups.weigh_all(active).is_ok() {
            self.active = active;
        }
        let mean = mean_us(self.used_us.values().copied());
        for (name, used) in &self.used_us {
            let known = self.weights.get(name).copied();
            let weight = weight(*used, mean, known.unwrap_or(CpuWeight::Usual));
            // A box that an earlier server lowered is not known.
            if known != Some(weight) && self.cgroups.weigh(name, weight).is_ok() {
                self.weights.insert(name.clone(), weight);
            }
        }
    }
}

/// Returns the mean usage of a box after one more look.
fn averaged(mean: Option<u64>, used: u64) -> u64 {
    match mean {
        Some(mean) => (mean * (LOOKS - 1) + used) / LOOKS,
        // The first look covers the start of the box too, so half counts.
        None => used / 2,
    }
}

/// Returns the idle and the whole time in the first line of `/proc/stat`, in ticks.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // Guest time, from the ninth field on, is included in user time.
    let fields: Vec<u64> = line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    let idle = fields.get(3)? + fields.get(4)?;
    Some((idle, fields.iter().sum()))
}

/// Returns the number of boxes that ask for processors.
fn active(used: impl Iterator<Item = u64>) -> u64 {
    used.fold(0, |count, used| if used >= ACTIVE_US_MIN { count + 1 } else { count })
}

/// Returns the mean of the boxes that used at least [`ACTIVE_US_MIN`].
fn mean_us(used: impl Iterator<Item = u64>) -> u64 {
    let (sum, count) =
        used.filter(|used| *used >= ACTIVE_US_MIN).fold((0u64, 0u64), |(sum, count), used| (sum + used, count + 1));
    sum.checked_div(count).unwrap_or(0)
}

/// Returns the weight of a box that used `used` while the mean of all is `mean`.
///
/// Low from one and a half times the mean on, usual again below the mean: boxes that all want the
/// same stay equal, and none alternates.
fn weight(used: u64, mean: u64, current: CpuWeight) -> CpuWeight {
    if used > HEAVY_US_MIN && used > mean.saturating_add(mean / 2) {
        CpuWeight::Low
    } else if used < mean || used < ACTIVE_US_MIN {
        CpuWeight::Usual
    } else {
        current
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    /// Returns the weights of boxes with these usages, all usual before.
    fn weights(used: &[u64]) -> Vec<CpuWeight> {
        let mean = mean_us(used.iter().copied());
        used.iter().map(|used| weight(*used, mean, CpuWeight::Usual)).collect()
    }

    #[test]
    fn only_a_box_that_uses_far_more_than_the_others_has_a_low_weight() {
        use CpuWeight::{Low, Usual};
        assert_eq!(weights(&[250_000, 2_000, 1_000, 0]), [Low, Usual, Usual, Usual]);
        assert_eq!(weights(&[100_000, 100_000, 110_000, 90_000]), [Usual; 4], "all want as much");
        assert_eq!(weights(&[250_000, 100, 100]), [Usual; 3], "the others want none");
        assert_eq!(weights(&[4_000, 300, 300, 300]), [Usual; 4], "a spawn among boxes with little to do");
        assert_eq!(weights(&[]), []);
    }

    /// Returns the mean of a box that had `mean`, after `looks` in which it used `used` each.
    fn after(mean: u64, used: u64, looks: usize) -> u64 {
        (0..looks).fold(mean, |mean, _| averaged(Some(mean), used))
    }

    #[test]
    fn a_new_box_that_computes_is_heavy_at_the_first_look_and_stays_so_while_it_gets_little() {
        let first = averaged(None, 40_000);
        assert_eq!(weight(first, 12_000, CpuWeight::Usual), CpuWeight::Low);
        assert_eq!(weight(after(first, 2_000, 5), 12_000, CpuWeight::Low), CpuWeight::Low, "half a second");
        assert_eq!(weight(after(first, 2_000, 30), 12_000, CpuWeight::Low), CpuWeight::Usual, "three seconds");
    }

    #[test]
    fn a_low_weight_ends_when_the_box_uses_less_than_the_others() {
        assert_eq!(weight(90_000, 80_000, CpuWeight::Low), CpuWeight::Low);
        assert_eq!(weight(70_000, 80_000, CpuWeight::Low), CpuWeight::Usual);
        assert_eq!(weight(100, 0, CpuWeight::Low), CpuWeight::Usual);
    }

    #[test]
    fn guests_are_not_counted_twice_and_waiting_for_disks_is_idle() {
        assert_eq!(ticks("cpu  10 1 5 100 20 0 2 0 7 0\ncpu0 1 1 1 1\n"), Some((120, 138)));
        assert_eq!(ticks("cpu 1 2\n"), None);
        assert_eq!(ticks(""), None);
    }

    proptest! {
        #[test]
        fn never_have_all_active_boxes_a_low_weight(used in proptest::collection::vec(0u64..1_000_000, 1..50)) {
            let weights = weights(&used);
            prop_assert!(weights.contains(&CpuWeight::Usual), "{used:?}");
        }
    }
}
