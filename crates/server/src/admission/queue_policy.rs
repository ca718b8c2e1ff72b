//! Rules for spawns that find no room.

use std::time::Duration;

use domain::{Denial, Places};

/// Rules for spawns that find no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePolicy {
    /// True if spawns over a cap wait.
    pub enabled: bool,
    /// True if spawns wait that find every shared box full.
    pub pool: bool,
    /// Maximum wait.
    pub timeout: Duration,
    /// Maximum number of waiting spawns, in total and of one owner.
    pub places: Places,
}

impl QueuePolicy {
    /// Returns whether a spawn denied for this reason waits.
    #[must_use]
    pub fn waits_for(&self, denial: Denial) -> bool {
        match denial {
            Denial::MaxSandboxes | Denial::MaxSandboxesPerOwner => self.enabled,
            Denial::PoolFull => self.pool,
            // The owner would wait for its own sandboxes.
            Denial::PoolShare => false,
        }
    }
}
