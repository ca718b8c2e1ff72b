//! Statistics of the queue of spawns.

use std::time::Duration;

/// Statistics of the queue since the start of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Number of spawns that wait now.
    pub depth: u64,
    /// Number of spawns that had to wait. `queued = dequeued + timed_out + left + depth`.
    pub queued: u64,
    /// Number of these that were admitted.
    pub dequeued: u64,
    /// Number of these that timed out.
    pub timed_out: u64,
    /// Number of these that ended otherwise: the caller disconnected, or an error occurred.
    pub left: u64,
    /// Total wait of the admitted spawns.
    pub wait_total: Duration,
    /// Longest wait of an admitted spawn.
    pub wait_max: Duration,
}
