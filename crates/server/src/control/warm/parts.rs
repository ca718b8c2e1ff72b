//! Parts of the warm pool that live in memory.

use std::sync::Arc;

use super::pool::WarmPool;
use super::snapshots::WarmSnapshots;
use crate::control::policy::WarmEntry;

/// Boxes that are kept ready, and the snapshots that they start from.
#[derive(Debug)]
pub(in crate::control) struct Warm {
    pub(in crate::control) pool: Arc<WarmPool>,
    pub(in crate::control) snapshots: WarmSnapshots,
}

impl Warm {
    /// Makes an empty pool of these entries.
    pub(in crate::control) fn new(entries: &[WarmEntry]) -> Self {
        Self { pool: Arc::new(WarmPool::new(entries)), snapshots: WarmSnapshots::new(entries.len()) }
    }
}
