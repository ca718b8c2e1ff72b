//! Snapshots of boxes.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use domain::{SandboxId, SnapshotId};
use images::{ImageGuard, Run};

use super::backend::Backend;
use super::boxes::Entry;
use super::cgroup::freezer::Freezer;
use super::folder::BoxFolder;
use super::image::Image;
use super::record::Record;
use super::removals::Removals;
use super::snapshot_folder::{LAYERS_MAX, SnapshotFolder};
use super::{Inner, Local};
use crate::{Error, Result, Snapshots, Spec, Taken, disk};

const TAKE: &str = "take a snapshot";

/// A tree of which no snapshot can be taken until its box changes it, as the cause of an [`io::Error`].
#[derive(Debug)]
pub(crate) struct Unfit(String);

impl Unfit {
    /// Returns the error with the reason, which follows a colon.
    pub(crate) fn because(reason: impl Into<String>) -> io::Error {
        io::Error::other(Unfit(reason.into()))
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}

impl<B: Backend> Inner<B> {
    /// Keeps the changes of a box in the folder of a new snapshot. The caller holds the lock on
    /// `entry`.
    async fn take(&self, id: &SandboxId, snapshot: &SnapshotId, entry: &Entry) -> Result<Taken> {
        let folder = self.folder(id);
        let new = self.backend.parts().folders.snapshot(snapshot);
        if !folder.exists() {
            self.boxes.forget(id);
            return Err(Error::Gone);
        }
        if self.is_suspended(&folder) {
            return Err(Error::Conflict("the sandbox is on disk; resume it first".to_owned()));
        }
        if entry.process(folder.pid())?.is_none_or(|process| process.has_ended()) {
            return Err(Error::Gone);
        }
        let record = folder.read().unwrap_or_default();
        if record.holds_slots {
            return Err(Error::NotSupported(
                "several users share the box, so it has no snapshots; spawn a sandbox with its own box".to_owned(),
            ));
        }
        let layers = folder.layers().map_err(not_taken)?.len();
        if layers + 1 >= LAYERS_MAX {
            return Err(Error::Invalid(format!(
                "the sandbox was made from {layers} nested snapshots, the maximum; spawn one from the image and copy \
                 the files into it"
            )));
        }
        let image = record.image.clone().or_else(|| record.copied.clone().filter(|_| !B::KEEPS_MEMORY));
        if !self.hold(snapshot, image.as_deref()) && B::COPIES_IMAGE {
            return Err(Error::Conflict(
                "the image of the box was removed from this host, and a box from a snapshot needs its settings; pull \
                 it again"
                    .to_owned(),
            ));
        }
        let taken = self.keep_still(&folder, &record, image, &new).await;
        if B::KEEPS_MEMORY {
            // The box has forgotten it; this end might learn so with the next request.
            entry.hang_up().await;
        }
        taken
    }

    /// Writes the snapshot while no process of the box runs.
    async fn keep_still(
        &self,
        folder: &BoxFolder,
        record: &Record,
        image: Option<String>,
        new: &SnapshotFolder,
    ) -> Result<Taken> {
        let freezer = if B::KEEPS_MEMORY { None } else { Freezer::of(&record.cgroups) };
        // One that is paused stays so.
        let freezer = freezer.filter(|freezer| !freezer.is_asked().unwrap_or(false));
        if let Some(freezer) = &freezer
            && !freezer.freeze().await.map_err(not_taken)?
        {
            return Err(Error::Unavailable("processes of the box did not stop; try again".to_owned()));
        }
        let written = match self.backend.snapshot_writer(self.can()) {
            Some(writer) => writer.write(folder, record, new).await,
            None => Err(Error::NotSupported(format!("the provider {} has no snapshots", B::NAME))),
        };
        if let Some(freezer) = freezer {
            freezer.thaw().map_err(not_taken)?;
        }
        let size_bytes = written?;
        let new = new.clone();
        let finished = tokio::task::spawn_blocking(move || new.finish(image)).await;
        finished.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(not_taken)?;
        Ok(Taken { size_bytes, has_memory: B::KEEPS_MEMORY })
    }

    /// Returns the image of a snapshot for `spec`; `None` for `host`.
    pub(super) fn image_of_snapshot(&self, spec: &Spec, snapshot: &SnapshotId) -> Result<Option<Image>> {
        let begin = Instant::now();
        let Some(held) = self.held_of_snapshot(snapshot)? else { return Ok(None) };
        held.run().check(&spec.image, spec.entrypoint)?;
        Ok(Some(Image { held, entrypoint: spec.entrypoint, took: begin.elapsed() }))
    }

    /// Returns the image of a snapshot, held; `None` for `host`.
    fn held_of_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<ImageGuard>> {
        let record = self.backend.parts().folders.snapshot(snapshot).read();
        let record = record.ok_or_else(|| Error::NotFound(format!("there is no snapshot {snapshot}")))?;
        let Some(digest) = record.image else { return Ok(None) };
        let held = self.backend.parts().images.as_ref().and_then(|images| images.hold(&digest));
        held.map(Some).ok_or_else(|| {
            Error::failed("make a box from a snapshot", format!("the image {digest} is gone from the store"))
        })
    }

    /// Holds the images of the snapshots that an earlier server took.
    pub(super) fn find_snapshots(&self) -> io::Result<()> {
        let folders = &self.backend.parts().folders;
        folders.make_snapshots()?;
        for (id, folder) in folders.all_snapshots()? {
            if let Some(record) = folder.read() {
                self.hold(&id, record.image.as_deref());
            }
        }
        Ok(())
    }

    /// Keeps the image of a snapshot on disk, until the snapshot is removed. Returns false if it is not
    /// there any more.
    fn hold(&self, id: &SnapshotId, digest: Option<&str>) -> bool {
        let Some(digest) = digest else { return true };
        match self.backend.parts().images.as_ref().and_then(|images| images.hold(digest)) {
            Some(held) => {
                self.snapshots.lock().insert(id.clone(), held);
                true
            }
            None => {
                tracing::warn!(%id, digest, "the image of a snapshot is no longer in the store");
                false
            }
        }
    }

    /// Moves a snapshot to the trash, where it is deleted in the background.
    fn discard(&self, id: &SnapshotId) -> io::Result<()> {
        let parts = self.backend.parts();
        let trash = parts.folders.trash.join(Removals::name(id.as_str()));
        match fs::rename(parts.folders.snapshot(id).path(), &trash) {
            Ok(()) => parts.removals.discard(trash, |_| {}),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.snapshots.lock().remove(id);
        Ok(())
    }
}

impl<B: Backend> Local<B> {
    /// Measures files that boxes share, apart from the async threads.
    async fn measured_shared(
        &self,
        measure: impl FnOnce(&Inner<B>) -> io::Result<u64> + Send + 'static,
    ) -> Result<u64> {
        let inner = Arc::clone(&self.inner);
        let measured = tokio::task::spawn_blocking(move || measure(&inner)).await;
        let measured = measured.unwrap_or_else(|error| Err(io::Error::other(error)));
        measured.map_err(|error| Error::failed("measure the layers of boxes", error))
    }
}

#[async_trait]
impl<B: Backend> Snapshots for Local<B> {
    async fn take(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Taken> {
        // Here and not in the task: a removal that comes after this call was dropped must find it.
        self.inner.backend.parts().folders.snapshot(snapshot).make().map_err(not_taken)?;
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let snapshot = snapshot.clone();
        let work = async move {
            let (entry, _change) = inner.boxes.change(&id).await;
            let taken = inner.take(&id, &snapshot, &entry).await;
            if taken.is_err()
                && let Err(error) = inner.discard(&snapshot)
            {
                tracing::warn!(%snapshot, %error, "cannot remove the remains of a snapshot that could not be taken");
            }
            taken
        };
        self.tracked(work, TAKE).await
    }

    fn has_memory(&self) -> bool {
        B::KEEPS_MEMORY
    }

    async fn image_settings(&self, snapshot: &SnapshotId) -> Result<Run> {
        let held = self.inner.held_of_snapshot(snapshot)?;
        if B::KEEPS_MEMORY {
            return Err(Error::NotSupported(
                "it has the memory of its machine, which only this provider can resume".to_owned(),
            ));
        }
        held.map(|held| held.run().clone()).ok_or_else(|| {
            Error::NotSupported("it lacks the programs of `host`, from which its sandbox was made".to_owned())
        })
    }

    async fn left_bytes(&self) -> Result<u64> {
        self.measured_shared(|inner| inner.left_bytes()).await
    }

    async fn held_bytes(&self, id: &SandboxId) -> Result<u64> {
        let folder = self.inner.folder(id);
        self.measured_shared(move |inner| inner.held_of_layers(&folder)).await
    }

    async fn remove(&self, snapshot: &SnapshotId) -> Result<()> {
        self.inner.discard(snapshot).map_err(|error| Error::failed("remove a snapshot", error))
    }

    async fn list(&self) -> Result<Vec<SnapshotId>> {
        let listed = self.inner.backend.parts().folders.all_snapshots();
        let listed = listed.map_err(|error| Error::failed("list the snapshots", error))?;
        Ok(listed.into_iter().map(|(id, _)| id).collect())
    }
}

/// Converts the failure to write a snapshot.
pub(crate) fn not_taken(error: io::Error) -> Error {
    if error.get_ref().is_some_and(|cause| cause.is::<erofs::Unfit>() || cause.is::<Unfit>()) {
        return Error::Invalid(format!("no snapshot can be taken: {error}"));
    }
    if error.kind() == ErrorKind::TimedOut {
        return Error::Unavailable("snapshots of very many files are being taken; try again later".to_owned());
    }
    if error.kind() == ErrorKind::NotFound {
        return Error::Conflict("the snapshot was removed while it was taken".to_owned());
    }
    disk::refused(TAKE, error)
}
