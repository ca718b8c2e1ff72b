//! Snapshots of boxes.

use std::fmt;

use async_trait::async_trait;
use domain::{SandboxId, SnapshotId};
use images::Run;

use crate::{Error, Result};

/// Content of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Bytes that it takes where it is kept, with those of the snapshots that it builds on.
    pub size_bytes: u64,
    /// True if it has the memory of the box and its processes, and not only its files.
    pub has_memory: bool,
}

/// A runtime that can keep the state of a box, and make boxes of it: of [`crate::Spec::snapshot`].
///
/// The caller gives each snapshot an id, and asks for it on the same runtime only. The image of a
/// snapshot's box stays on this host as long as the snapshot.
///
/// Every implementation passes the suite in the crate `conformance`: each bullet here is tested by
/// a case there.
#[async_trait]
pub trait Snapshots: fmt::Debug + Send + Sync {
    /// Keeps the state of a box as a new snapshot. The box goes on afterwards, or stays paused.
    ///
    /// - The files are kept as they are at one moment, with their modes, owners, times, attributes and
    ///   links, and so is what was removed of the image.
    /// - A box that is made of it has these files. What it changes shows in no other box, and not in
    ///   the snapshot.
    /// - A snapshot can be taken of a box that was made of another.
    /// - A box that does not exist is [`crate::Error::Gone`].
    /// - On error nothing is left behind. Dropping the future leaves nothing that
    ///   [`Snapshots::remove`] does not remove.
    /// - Where [`Snapshots::has_memory`] holds, its processes are in it too, and go on in each box that is
    ///   made of it, with the size of its box. What the server had open to the box, commands in the
    ///   foreground and connections, ends, in the box and in those that are made of it.
    async fn take(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Taken>;

    /// Returns whether snapshots have the memory of their boxes, and not only the files.
    fn has_memory(&self) -> bool {
        false
    }

    /// Returns the settings of the image of a snapshot's box, with which all its files can become an image
    /// for another provider.
    ///
    /// - A snapshot that does not exist is [`crate::Error::NotFound`].
    /// - A snapshot that lacks files of its box, or has its memory, is [`crate::Error::NotSupported`].
    async fn image_settings(&self, snapshot: &SnapshotId) -> Result<Run> {
        let _ = snapshot;
        Err(Error::NotSupported("its provider cannot make an image from a snapshot".to_owned()))
    }

    /// Returns the bytes on disk that boxes alone keep of snapshots that were removed, each once.
    async fn left_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    /// Returns the bytes that a box holds of removed snapshots, with its part of what several boxes hold; they
    /// are part of its [`crate::Provider::disk_usage`].
    async fn held_bytes(&self, id: &SandboxId) -> Result<u64> {
        let _ = id;
        Ok(0)
    }

    /// Removes a snapshot.
    ///
    /// - Boxes that were made of it go on, and so do snapshots that build on it.
    /// - Removing one that does not exist succeeds.
    /// - A start of a box from one that does not exist is [`crate::Error::NotFound`].
    async fn remove(&self, snapshot: &SnapshotId) -> Result<()>;

    /// Lists every snapshot of this store that the runtime holds, unfinished ones too.
    ///
    /// - Snapshots that an earlier process took are listed, and boxes can be made of them.
    async fn list(&self) -> Result<Vec<SnapshotId>>;
}
