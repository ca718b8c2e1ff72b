//! The warm pool: boxes that are kept ready, and the snapshots that they can start from.

pub(super) mod fill;
pub(super) mod late_deadlines;
pub(super) mod parts;
pub(super) mod pool;
pub(super) mod set_deadlines;
pub(super) mod snapshot_refresh;
pub(super) mod snapshots;
