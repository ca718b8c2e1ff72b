//! Snapshots that this process is taking or removing now. A row that is not ready and missing here
//! was left by a crash.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SnapshotId;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::control::keyed_lock::KeyedLock;

/// Most snapshots that are taken at once: each reads and writes all that a sandbox has changed.
const TAKEN_AT_ONCE: usize = 4;
/// Most snapshots that callers have asked for and that are being taken or wait for it; each may take minutes.
pub(in crate::control) const QUEUED_MAX: usize = 64;

/// Guards of snapshots.
#[derive(Debug, Default)]
pub(in crate::control) struct Snapshotting {
    /// Snapshots that this process is taking or removing now.
    pub(in crate::control) in_progress: SnapshotsInProgress,
    /// Locks to make images of snapshots.
    pub(in crate::control) images: KeyedLock<SnapshotId>,
}

/// Snapshots that are being taken or removed.
#[derive(Debug)]
pub(in crate::control) struct SnapshotsInProgress {
    /// Number of tasks that do so, for each.
    tasks: Arc<Mutex<HashMap<SnapshotId, usize>>>,
    places: Semaphore,
    queue: Semaphore,
}

/// Guard that marks a snapshot as being taken or removed, until dropped.
#[derive(Debug)]
pub(in crate::control) struct SnapshotInHand {
    tasks: Arc<Mutex<HashMap<SnapshotId, usize>>>,
    id: SnapshotId,
}

impl Default for SnapshotsInProgress {
    fn default() -> SnapshotsInProgress {
        SnapshotsInProgress {
            tasks: Arc::default(),
            places: Semaphore::new(TAKEN_AT_ONCE),
            queue: Semaphore::new(QUEUED_MAX),
        }
    }
}

impl SnapshotsInProgress {
    /// Marks a snapshot as being taken or removed.
    pub(in crate::control) fn begin(&self, id: &SnapshotId) -> SnapshotInHand {
        *self.tasks.lock().entry(id.clone()).or_default() += 1;
        SnapshotInHand { tasks: Arc::clone(&self.tasks), id: id.clone() }
    }

    /// Waits for the turn to take a snapshot, which lasts until the permit is dropped.
    pub(in crate::control) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.places.acquire().await.ok()
    }

    /// Counts a request for a snapshot until the permit is dropped; `None` where as many as may wait do.
    pub(in crate::control) fn queue(&self) -> Option<SemaphorePermit<'_>> {
        self.queue.try_acquire().ok()
    }

    /// Returns how many requests are counted.
    #[cfg(test)]
    pub(in crate::control) fn queued(&self) -> usize {
        QUEUED_MAX - self.queue.available_permits()
    }

    /// Returns whether a snapshot is being taken or removed.
    pub(in crate::control) fn holds(&self, id: &SnapshotId) -> bool {
        self.tasks.lock().contains_key(id)
    }
}

impl Drop for SnapshotInHand {
    fn drop(&mut self) {
        let mut all = self.tasks.lock();
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
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn no_more_than_so_many_snapshots_are_taken_at_once() {
        let all = SnapshotsInProgress::default();
        let mut places = Vec::new();
        for _ in 0..TAKEN_AT_ONCE {
            places.push(all.place().await);
        }
        assert!(all.place().now_or_never().is_none());
        places.pop();
        assert!(all.place().now_or_never().is_some());
    }

    #[test]
    fn requests_for_snapshots_are_counted_and_what_is_merely_in_hand_is_not() {
        let all = SnapshotsInProgress::default();
        // As those of the warm pool are, for as long as they are kept.
        let held: Vec<_> = (0..=64).map(|n| all.begin(&SnapshotId::from_entropy([n; 10]))).collect();
        let queued: Vec<_> = std::iter::from_fn(|| all.queue()).collect();
        assert_eq!((held.len(), queued.len()), (QUEUED_MAX + 1, QUEUED_MAX));
        drop(queued);
        assert!(all.queue().is_some());
    }

    #[test]
    fn a_snapshot_is_in_hand_until_the_last_task_has_ended() {
        let (all, id) = (SnapshotsInProgress::default(), SnapshotId::from_entropy([1; 10]));
        let (first, second) = (all.begin(&id), all.begin(&id));
        drop(first);
        assert!(all.holds(&id));
        drop(second);
        assert!(!all.holds(&id));
    }
}
