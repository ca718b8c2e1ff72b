//! Boxes that are paused, by the freezers of their control groups.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;

use super::backend::Backend;
use super::boxes::Entry;
use super::cgroup::freezer::Freezer;
use super::folder::BoxFolder;
use super::probe::probe_id;
use super::{Inner, Local};
use crate::{Error, Pauses, Result};

impl<B: Backend> Inner<B> {
    /// Returns the freezer of a box. The caller holds the lock on `entry`.
    fn freezer(&self, id: &SandboxId, entry: &Entry) -> Result<Freezer> {
        let folder = self.folder(id);
        if !folder.exists() {
            self.boxes.forget(id);
            return Err(Error::Gone);
        }
        if entry.process(folder.pid())?.is_none_or(|process| process.has_ended()) {
            return Err(Error::Gone);
        }
        let record = folder.read().unwrap_or_default();
        Freezer::of(&record.cgroups).ok_or_else(|| {
            Error::NotSupported(
                "the box has no control group that can be frozen, since an earlier build of the server made it; make \
                 it anew"
                    .to_owned(),
            )
        })
    }
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
}

/// Converts an error of a freezer; a group that is gone went with its box.
fn failed(action: &'static str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound { Error::Gone } else { Error::failed(action, error) }
}
