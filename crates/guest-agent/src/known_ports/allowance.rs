//! Number of changes that may be reported at once, and in the long run.

use std::time::Duration;

use guest_protocol::{PORT_CHANGE_EVERY, PORT_CHANGES_BURST};
use tokio::time::Instant;

/// Changes that may be reported.
#[derive(Debug)]
pub(crate) struct Allowance {
    started: Instant,
    /// Time, since `started`, that the changes which were reported have used up.
    used: Duration,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { started: Instant::now(), used: Duration::ZERO }
    }
}

impl Allowance {
    /// Returns the number of changes that may be reported now.
    pub(crate) fn grants(&mut self, now: Instant) -> usize {
        // The whole burst is there from the start.
        let passed = now.saturating_duration_since(self.started) + PORT_CHANGE_EVERY * PORT_CHANGES_BURST;
        self.used = self.used.max(passed.saturating_sub(PORT_CHANGE_EVERY * PORT_CHANGES_BURST));
        let left = passed.saturating_sub(self.used).as_nanos() / PORT_CHANGE_EVERY.as_nanos();
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Counts a change.
    pub(super) fn spend(&mut self) {
        self.used += PORT_CHANGE_EVERY;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_one_change_at_a_time() {
        let mut allowance = Allowance::default();
        let start = allowance.started;
        let burst = PORT_CHANGES_BURST as usize;
        assert_eq!(allowance.grants(start), burst);
        (0..burst).for_each(|_| allowance.spend());
        assert_eq!(allowance.grants(start), 0);
        assert_eq!(allowance.grants(start + PORT_CHANGE_EVERY / 2), 0);
        assert_eq!(allowance.grants(start + PORT_CHANGE_EVERY * 3), 3);
        allowance.spend();
        assert_eq!(allowance.grants(start + PORT_CHANGE_EVERY * 3), 2);
        // No more than a burst gathers.
        assert_eq!(allowance.grants(start + PORT_CHANGE_EVERY * 1000), burst);
    }
}
