//! Boxes that are paused.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;

use super::abilities::Pauser;
use super::agent_socket::Running;
use super::backend::Backend;
use super::boxes::Entry;
use super::cgroup::memory::MemoryGroup;
use super::folder::BoxFolder;
use super::probe::probe_id;
use super::record::Record;
use super::{Inner, Local};
use crate::{Error, Pauses, Reclaimed, Result};

impl<B: Backend> Inner<B> {
    /// Returns the folder and the record of a box that is alive. The caller holds the lock on `entry`.
    fn alive(&self, id: &SandboxId, entry: &Entry) -> Result<(BoxFolder, Record)> {
        let folder = self.folder(id);
        if !folder.exists() {
            self.boxes.forget(id);
            return Err(Error::Gone);
        }
        let record = record(&folder, entry)?;
        Ok((folder, record))
    }

    /// Has a box go on that was written to disk. The caller holds the lock on `entry`.
    pub(super) async fn wake(&self, id: &SandboxId, entry: &Entry) -> Result<()> {
        let folder = self.folder(id);
        // Of a server that was killed while it wrote the box.
        let left = entry.process(folder.pid())?;
        let Some(suspender) = self.backend.suspender() else { return Err(Error::Gone) };
        let woken = suspender.wake(&folder, left.as_deref()).await;
        // It has ended: what is found next is the process that the folder names.
        entry.leave().await;
        let Running { process, guest, .. } = woken?;
        entry.settle(process, guest, &self.backend.parts().tasks).await;
        Ok(())
    }

    fn pauser(&self) -> Result<&dyn Pauser> {
        let pauser = self.backend.pauser();
        pauser.ok_or_else(|| Error::NotSupported(format!("the provider {} cannot pause boxes here", B::NAME)))
    }

    /// Lists the paused boxes except the probe. Blocks.
    fn list_paused(&self) -> io::Result<Vec<SandboxId>> {
        let Some(pauser) = self.backend.pauser() else { return Ok(Vec::new()) };
        let boxes = self.backend.parts().folders.all()?.into_iter();
        let paused = boxes.filter(|(id, folder)| {
            *id != probe_id() && folder.read().is_some_and(|record| pauser.is_paused(folder, &record))
        });
        Ok(paused.map(|(id, _)| id).collect())
    }

    /// Returns the group that counts the memory of a box. Takes no lock: neither the resume of a box
    /// nor its end waits for a reclaim.
    fn memory(&self, id: &SandboxId) -> Result<MemoryGroup> {
        let folder = self.folder(id);
        if !folder.exists() {
            return Err(Error::Gone);
        }
        let group = MemoryGroup::of(&record(&folder, &self.boxes.entry(id))?.cgroups).ok_or_else(|| {
            Error::NotSupported("no control group counts the memory of the box, so it cannot be reclaimed".to_owned())
        })?;
        group.check_reclaim().map(|()| group)
    }
}

/// Returns the record of a box that is alive.
fn record(folder: &BoxFolder, entry: &Entry) -> Result<Record> {
    if entry.process(folder.pid())?.is_none_or(|process| process.has_ended()) {
        return Err(Error::Gone);
    }
    Ok(folder.read().unwrap_or_default())
}

#[async_trait]
impl<B: Backend> Pauses for Local<B> {
    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let work = async move {
            let (entry, _change) = inner.boxes.change(&id).await;
            if inner.is_suspended(&inner.folder(&id)) {
                return Ok(());
            }
            let (folder, record) = inner.alive(&id, &entry)?;
            match inner.pauser()?.pause(&folder, &record).await? {
                true => Ok(()),
                false => Err(Error::Unavailable("processes of the box did not stop; try again".to_owned())),
            }
        };
        self.tracked(work, "pause a box").await
    }

    async fn resume(&self, id: &SandboxId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let work = async move {
            let (entry, _change) = inner.boxes.change(&id).await;
            if inner.is_suspended(&inner.folder(&id)) {
                return inner.wake(&id, &entry).await;
            }
            let (folder, record) = inner.alive(&id, &entry)?;
            inner.pauser()?.resume(&folder, &record).await
        };
        self.tracked(work, "resume a box").await
    }

    fn can_suspend(&self) -> bool {
        self.inner.backend.suspender().is_some()
    }

    fn is_suspended(&self, id: &SandboxId) -> bool {
        self.inner.is_suspended(&self.inner.folder(id))
    }

    async fn suspend(&self, id: &SandboxId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let work = async move {
            let (entry, _change) = inner.boxes.change(&id).await;
            let folder = inner.folder(&id);
            let Some(suspender) = inner.backend.suspender() else {
                return Err(Error::NotSupported(format!("the provider {} cannot write boxes to disk", B::NAME)));
            };
            if !suspender.is_suspended(&folder) {
                let (folder, record) = inner.alive(&id, &entry)?;
                if !inner.pauser()?.is_paused(&folder, &record) {
                    return Err(Error::Conflict("the box is not paused; pause it first".to_owned()));
                }
            }
            // Of one that is on disk it may be left, where an earlier attempt was cut off.
            let process = entry.process(folder.pid())?;
            suspender.suspend(&folder, process.as_deref()).await?;
            entry.leave().await;
            Ok(())
        };
        self.tracked(work, "write a box to disk").await
    }

    async fn paused(&self) -> Result<Vec<SandboxId>> {
        let inner = Arc::clone(&self.inner);
        let listed = tokio::task::spawn_blocking(move || inner.list_paused()).await;
        let listed = listed.unwrap_or_else(|error| Err(io::Error::other(error)));
        listed.map_err(|error| Error::failed("list the paused boxes", error))
    }

    fn can_reclaim(&self) -> bool {
        self.inner.backend.pauser().is_some_and(Pauser::can_reclaim)
    }

    async fn check_reclaim(&self, id: &SandboxId) -> Result<()> {
        self.inner.memory(id).map(drop)
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<Reclaimed> {
        self.inner.memory(id)?.reclaim(&self.inner.backend.parts().agent).await
    }
}
