//! Snapshots in memory: copies of the files of boxes.

use std::sync::Arc;

use async_trait::async_trait;
use domain::{SandboxId, SnapshotId};

use super::Mock;
use super::fs::FileSystem;
use crate::{Error, Result, Snapshots, Taken};

impl Mock {
    /// Returns the files of a snapshot.
    pub(super) fn files_of(&self, snapshot: &SnapshotId) -> Result<Arc<FileSystem>> {
        let found = self.lock().snapshots.get(snapshot).cloned();
        found.ok_or_else(|| Error::NotFound(format!("there is no snapshot {snapshot}")))
    }
}

#[async_trait]
impl Snapshots for Mock {
    async fn take(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Taken> {
        let found = self.find(id).filter(|found| !found.dead().is_cancelled()).ok_or(Error::Gone)?;
        if let Some(delay) = found.faults().snapshot_delay {
            found.dead().run_until_cancelled(tokio::time::sleep(delay)).await.ok_or(Error::Gone)?;
        }
        if found.is_snapshot_refused() {
            return Err(Error::failed("take a snapshot", "requested by the label mock.snapshot_fail"));
        }
        let files = found.fs().copy(u64::MAX)?;
        let size_bytes = files.used();
        self.lock().snapshots.insert(snapshot.clone(), Arc::new(files));
        Ok(Taken { size_bytes, has_memory: false })
    }

    async fn remove(&self, snapshot: &SnapshotId) -> Result<()> {
        self.lock().snapshots.remove(snapshot);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SnapshotId>> {
        Ok(self.lock().snapshots.keys().cloned().collect())
    }
}
