//! Boxes that this process is making now, which no comparison takes for orphans.

use std::collections::HashSet;
use std::sync::Arc;

use domain::SandboxId;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Boxes that this process is making now. A row in state `creating` that is missing here was left by a
/// crash.
#[derive(Debug, Default)]
pub(in crate::control) struct Spawns {
    ids: Mutex<HashSet<SandboxId>>,
    /// Wakes waiters when no box is being made any more.
    ended: Notify,
}

/// Guard that marks a box as being made by this process, until dropped.
#[derive(Debug)]
pub(in crate::control) struct InProgress {
    spawns: Arc<Spawns>,
    id: SandboxId,
}

impl Spawns {
    /// Marks a box as being made.
    pub(in crate::control) fn begin(self: &Arc<Self>, id: &SandboxId) -> InProgress {
        self.ids.lock().insert(id.clone());
        InProgress { spawns: Arc::clone(self), id: id.clone() }
    }

    /// Returns whether the box is being made.
    pub(in crate::control) fn contains(&self, id: &SandboxId) -> bool {
        self.ids.lock().contains(id)
    }

    /// Returns whether no box is being made.
    pub(in crate::control) fn is_empty(&self) -> bool {
        self.ids.lock().is_empty()
    }

    /// Waits until no box is being made.
    pub(in crate::control) async fn ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.is_empty() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut ids = self.spawns.ids.lock();
        ids.remove(&self.id);
        if ids.is_empty() {
            self.spawns.ended.notify_waiters();
        }
    }
}
