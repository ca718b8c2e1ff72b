//! Snapshots that this process is taking or removing now. A row that is not ready and missing here
//! was left by a crash.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SnapshotId;
use parking_lot::Mutex;

/// Snapshots that are being taken or removed, with the number of tasks that do so.
#[derive(Debug, Clone, Default)]
pub(super) struct SnapshotsInHand(Arc<Mutex<HashMap<SnapshotId, usize>>>);

/// Guard that marks a snapshot as being taken or removed, until dropped.
#[derive(Debug)]
pub(super) struct SnapshotInHand {
    all: SnapshotsInHand,
    id: SnapshotId,
}

impl SnapshotsInHand {
    /// Marks a snapshot as being taken or removed.
    pub(super) fn begin(&self, id: &SnapshotId) -> SnapshotInHand {
        *self.0.lock().entry(id.clone()).or_default() += 1;
        SnapshotInHand { all: self.clone(), id: id.clone() }
    }

    /// Returns whether a snapshot is being taken or removed.
    pub(super) fn holds(&self, id: &SnapshotId) -> bool {
        self.0.lock().contains_key(id)
    }
}

impl Drop for SnapshotInHand {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(tasks) = all.get_mut(&self.id) {
            *tasks -= 1;
            if *tasks == 0 {
                all.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_snapshot_is_in_hand_until_the_last_task_has_ended() {
        let (all, id) = (SnapshotsInHand::default(), SnapshotId::from_entropy([1; 10]));
        let (first, second) = (all.begin(&id), all.begin(&id));
        drop(first);
        assert!(all.holds(&id));
        drop(second);
        assert!(!all.holds(&id));
    }
}
