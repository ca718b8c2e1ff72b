//! Parts of the warm pool that live in memory.

use std::sync::Arc;

use super::late_deadlines::LateDeadlines;
use super::pool::WarmPool;
use super::snapshots::WarmSnapshots;
use crate::control::policy::WarmEntry;

/// Boxes that are kept ready, the snapshots that they start from, and their deadlines.
#[derive(Debug)]
pub(in crate::control) struct Warm {
    pub(in crate::control) pool: Arc<WarmPool>,
    pub(in crate::control) snapshots: WarmSnapshots,
    /// Deadlines that boxes get after their spawns.
    pub(in crate::control) deadlines: LateDeadlines,
}

impl Warm {
    /// Makes an empty pool of these entries.
    pub(in crate::control) fn new(entries: &[WarmEntry]) -> Self {
        Self {
            pool: Arc::new(WarmPool::new(entries)),
            snapshots: WarmSnapshots::new(entries.len()),
            deadlines: LateDeadlines::default(),
        }
    }
}
