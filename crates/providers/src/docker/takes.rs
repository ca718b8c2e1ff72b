//! Snapshots that are being taken.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SnapshotId;
use parking_lot::Mutex;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio_util::sync::CancellationToken;

type Running = Arc<Mutex<HashMap<SnapshotId, CancellationToken>>>;

/// Snapshots that are being taken.
#[derive(Debug, Default)]
pub(super) struct Takes {
    running: Running,
    /// Held by each that is being committed: its image has no name for a moment.
    naming: RwLock<()>,
}

/// Snapshot that is being taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Take {
    running: Running,
    snapshot: SnapshotId,
}

impl Takes {
    /// Notes that a snapshot is being taken.
    pub(super) fn begin(&self, snapshot: &SnapshotId) -> Take {
        self.running.lock().insert(snapshot.clone(), CancellationToken::new());
        Take { running: Arc::clone(&self.running), snapshot: snapshot.clone() }
    }

    /// Waits until the snapshot is not being taken any more.
    pub(super) async fn ended(&self, snapshot: &SnapshotId) {
        let running = self.running.lock().get(snapshot).cloned();
        if let Some(running) = running {
            running.cancelled().await;
        }
    }

    /// Returns those that are being taken.
    pub(super) fn running(&self) -> Vec<SnapshotId> {
        self.running.lock().keys().cloned().collect()
    }

    /// Begins a commit. Its image has its name when the guard is dropped.
    pub(super) async fn naming(&self) -> RwLockReadGuard<'_, ()> {
        self.naming.read().await
    }

    /// Keeps commits waiting until the guard is dropped; `None` while one is under way.
    pub(super) fn none_is_named(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.naming.try_write().ok()
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        if let Some(ended) = self.running.lock().remove(&self.snapshot) {
            ended.cancel();
        }
    }
}
