//! Boxes that are paused, by the freezers of their control groups.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;
use guest_protocol::CgroupDir;

use super::backend::Backend;
use super::boxes::Entry;
use super::cgroup::freezer::Freezer;
use super::cgroup::memory::MemoryGroup;
use super::folder::BoxFolder;
use super::probe::probe_id;
use super::{Inner, Local};
use crate::{Error, Pauses, Reclaimed, Result};

impl<B: Backend> Inner<B> {
    /// Returns the freezer of a box. The caller holds the lock on `entry`.
    fn freezer(&self, id: &SandboxId, entry: &Entry) -> Result<Freezer> {
        let folder = self.folder(id);
        if !folder.exists() {
            self.boxes.forget(id);
            return Err(Error::Gone);
        }
        Freezer::of(&groups(&folder, entry)?).ok_or_else(|| {
            Error::NotSupported(
                "the box has no control group that can be frozen, since an earlier build of the server made it; make \
                 it anew"
                    .to_owned(),
            )
        })
    }

    /// Returns the group that counts the memory of a box. Takes no lock: neither the resume of a box
    /// nor its end waits for a reclaim.
    fn memory(&self, id: &SandboxId) -> Result<MemoryGroup> {
        let folder = self.folder(id);
        if !folder.exists() {
            return Err(Error::Gone);
        }
        let group = MemoryGroup::of(&groups(&folder, &self.boxes.entry(id))?).ok_or_else(|| {
            Error::NotSupported("no control group counts the memory of the box, so none can be handed back".to_owned())
        })?;
        group.check_reclaim().map(|()| group)
    }
}

/// Returns the control groups of a box that is alive.
fn groups(folder: &BoxFolder, entry: &Entry) -> Result<Vec<CgroupDir>> {
    if entry.process(folder.pid())?.is_none_or(|process| process.has_ended()) {
        return Err(Error::Gone);
    }
    Ok(folder.read().unwrap_or_default().cgroups)
}

#[async_trait]
impl<B: Backend> Pauses for Local<B> {
    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        let work = async move {
            let (entry, _change) = inner.boxes.change(&id).await;
            match inner.freezer(&id, &entry)?.freeze().await.map_err(|error| failed("pause a box", error))? {
                true => Ok(()),
                false => Err(Error::Unavailable("processes of the box do not stop; try again".to_owned())),
            }
        };
        self.tracked(work, "pause a box").await
    }

    async fn resume(&self, id: &SandboxId) -> Result<()> {
        let (entry, _change) = self.inner.boxes.change(id).await;
        self.inner.freezer(id, &entry)?.thaw().map_err(|error| failed("resume a box", error))
    }

    async fn paused(&self) -> Result<Vec<SandboxId>> {
        let inner = Arc::clone(&self.inner);
        let list = move || -> io::Result<Vec<SandboxId>> {
            let is_paused = |folder: &BoxFolder| {
                let freezer = folder.read().and_then(|record| Freezer::of(&record.cgroups));
                // The group of a box that is being removed is gone.
                freezer.is_some_and(|freezer| freezer.is_asked().unwrap_or(false))
            };
            let boxes = inner.backend.parts().folders.all()?.into_iter();
            Ok(boxes.filter(|(id, folder)| *id != probe_id() && is_paused(folder)).map(|(id, _)| id).collect())
        };
        let listed = tokio::task::spawn_blocking(list).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        listed.map_err(|error| failed("list the paused boxes", error))
    }

    fn can_reclaim(&self) -> bool {
        self.inner.backend.can_reclaim()
    }

    async fn check_reclaim(&self, id: &SandboxId) -> Result<()> {
        self.inner.memory(id).map(drop)
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<Reclaimed> {
        self.inner.memory(id)?.reclaim(&self.inner.backend.parts().agent).await
    }
}

/// Converts an error of a freezer; a group that is gone went with its box.
fn failed(action: &'static str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound { Error::Gone } else { Error::failed(action, error) }
}
