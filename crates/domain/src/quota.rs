//! Quotas: limits of one owner that differ from the global ones.

use std::time::Duration;

use crate::{Caps, Limits};

/// The limits of one owner, which replace the global ones. Zero inherits the global value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Maximum number of active sandboxes.
    pub max_sandboxes: u64,
    /// Longest lifetime of a sandbox; whole seconds.
    pub max_ttl: Duration,
    /// Longest deadline of a command; whole seconds.
    pub max_exec_timeout: Duration,
    /// Maximum memory of one sandbox, in mebibytes.
    pub max_memory_mb: u32,
    /// Maximum number of virtual CPUs of one sandbox.
    pub max_vcpus: u32,
    /// Maximum size of one sandbox's file system, in mebibytes.
    pub max_disk_mb: u32,
}

/// A duration that is not a whole number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be whole seconds, such as 90s or 1h30m; 0s inherits the global value")]
pub struct FractionalSeconds;

impl Quota {
    /// Largest value of `max_sandboxes`.
    pub const SANDBOXES_MAX: u64 = 1_000_000_000;

    /// Returns `duration` if it is a whole number of seconds, zero included.
    ///
    /// # Errors
    /// [`FractionalSeconds`] for any other duration.
    pub fn whole_seconds(duration: Duration) -> Result<Duration, FractionalSeconds> {
        if duration.subsec_nanos() == 0 { Ok(duration) } else { Err(FractionalSeconds) }
    }
}

fn over<T: PartialEq>(own: T, global: T, inherits: T) -> T {
    if own == inherits { global } else { own }
}

impl Limits {
    /// Returns the limits on time of an owner with `quota`, whose maxima replace the global ones.
    #[must_use]
    pub fn under(self, quota: &Quota) -> Limits {
        Limits {
            ttl_max: over(quota.max_ttl, self.ttl_max, Duration::ZERO),
            exec_timeout_max: over(quota.max_exec_timeout, self.exec_timeout_max, Duration::ZERO),
            ..self
        }
    }
}

impl Caps {
    /// Returns the caps of an owner with `quota`, which may replace the cap for one owner.
    #[must_use]
    pub fn under(self, quota: &Quota) -> Caps {
        Caps { max_sandboxes_per_owner: over(quota.max_sandboxes, self.max_sandboxes_per_owner, 0), ..self }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const GLOBAL: Limits = Limits {
        ttl_default: Duration::from_secs(60),
        ttl_max: Duration::from_secs(100),
        exec_timeout_default: Duration::from_secs(10),
        exec_timeout_max: Duration::from_secs(20),
    };

    #[test]
    fn zero_inherits_the_global_value() {
        assert_eq!(GLOBAL.under(&Quota::default()), GLOBAL);
        let caps = Caps { max_sandboxes: 5, max_sandboxes_per_owner: 3 };
        assert_eq!(caps.under(&Quota::default()), caps);
    }

    #[test]
    fn a_quota_overrides_in_both_directions_and_only_what_it_names() {
        let quota = Quota { max_ttl: Duration::from_secs(500), max_sandboxes: 1, ..Quota::default() };
        let limits = GLOBAL.under(&quota);
        assert_eq!((limits.ttl_max, limits.exec_timeout_max), (Duration::from_secs(500), GLOBAL.exec_timeout_max));
        assert_eq!(
            (limits.ttl_default, limits.exec_timeout_default),
            (GLOBAL.ttl_default, GLOBAL.exec_timeout_default)
        );
        let caps = Caps { max_sandboxes: 5, max_sandboxes_per_owner: 3 }.under(&quota);
        assert_eq!(caps, Caps { max_sandboxes: 5, max_sandboxes_per_owner: 1 });
    }

    #[test]
    fn durations_of_a_quota_are_whole_seconds() {
        assert!(Quota::whole_seconds(Duration::from_millis(1500)).is_err());
        assert!(Quota::whole_seconds(Duration::from_millis(999)).is_err());
        assert_eq!(Quota::whole_seconds(Duration::ZERO), Ok(Duration::ZERO));
        assert_eq!(Quota::whole_seconds(Duration::from_secs(90)), Ok(Duration::from_secs(90)));
    }
}
