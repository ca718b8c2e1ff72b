//! Admission of one more sandbox.

/// Maximum number of active sandboxes; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caps {
    /// Maximum over all owners together.
    pub max_sandboxes: u64,
    /// Maximum for one owner; it does not apply to a sandbox without an owner.
    pub max_sandboxes_per_owner: u64,
}

/// Number of active sandboxes (`creating`, `running` or `destroying`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Active {
    /// Number over all owners together.
    pub total: u64,
    /// Number of the requesting owner; `None` without an owner.
    pub owner: Option<u64>,
}

/// Active sandboxes, and the caps on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Numbers of active sandboxes.
    pub active: Active,
    /// Caps of the requesting owner.
    pub caps: Caps,
}

impl Room {
    /// Decides whether one more sandbox is admitted.
    ///
    /// # Errors
    /// The [`Denial`] of [`Caps::admit`].
    pub fn admit(&self) -> Result<(), Denial> {
        self.caps.admit(self.active)
    }
}

/// The limit that refuses a sandbox. If several do, the first in this order is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The cap on all sandboxes.
    MaxSandboxes,
    /// The cap on sandboxes of one owner.
    MaxSandboxesPerOwner,
    /// The places in all boxes that users share, in pool mode.
    PoolFull,
    /// The owner's share of the pool's boxes, of which those count that hold this owner alone and
    /// are not full.
    PoolShare,
}

impl Denial {
    /// Returns the reason's name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Denial::MaxSandboxes => "max_sandboxes",
            Denial::MaxSandboxesPerOwner => "max_sandboxes_per_owner",
            Denial::PoolFull => "pool_full",
            Denial::PoolShare => "pool_share",
        }
    }
}

impl Caps {
    /// Decides whether one more sandbox is admitted beside the active ones.
    ///
    /// # Errors
    /// The [`Denial`] names the cap that is reached.
    pub fn admit(&self, active: Active) -> Result<(), Denial> {
        if is_reached(self.max_sandboxes, active.total) {
            return Err(Denial::MaxSandboxes);
        }
        if active.owner.is_some_and(|used| is_reached(self.max_sandboxes_per_owner, used)) {
            return Err(Denial::MaxSandboxesPerOwner);
        }
        Ok(())
    }
}

/// Returns whether `used` leaves no room below a cap; a cap of 0 is no limit.
pub(crate) fn is_reached(cap: u64, used: u64) -> bool {
    cap != 0 && used >= cap
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(caps: (u64, u64), active: (u64, Option<u64>), expected: Result<(), Denial>) {
        let caps = Caps { max_sandboxes: caps.0, max_sandboxes_per_owner: caps.1 };
        assert_eq!(caps.admit(Active { total: active.0, owner: active.1 }), expected);
    }

    #[test]
    fn a_cap_of_zero_is_no_limit() {
        check((0, 0), (u64::MAX, Some(u64::MAX)), Ok(()));
    }

    #[test]
    fn the_global_cap_is_named_first() {
        check((2, 1), (1, Some(0)), Ok(()));
        check((2, 1), (2, Some(1)), Err(Denial::MaxSandboxes));
        check((2, 1), (1, Some(1)), Err(Denial::MaxSandboxesPerOwner));
    }

    #[test]
    fn nobody_in_particular_is_under_no_owner_cap() {
        check((0, 1), (9, None), Ok(()));
    }
}
