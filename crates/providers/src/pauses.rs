//! Boxes that are paused.

use std::fmt;

use async_trait::async_trait;
use domain::SandboxId;

use crate::Result;

/// A runtime whose boxes can be paused: their processes stop where they are, and notice nothing but
/// the clock when they go on. Memory and files stay as they are, and the lifetime runs on.
///
/// While a box is paused, calls to its inside wait for it until their time is over, and its own
/// deadline does not end it.
///
/// Every implementation passes the suite in the crate `conformance`: each bullet here is tested by
/// a case there.
#[async_trait]
pub trait Pauses: fmt::Debug + Send + Sync {
    /// Pauses a box, and returns once none of its processes runs.
    ///
    /// - Pausing a box that is paused succeeds.
    /// - A box that does not exist is [`crate::Error::Gone`].
    /// - A paused box is alive in the inventory, and [`crate::Provider::stop`] removes it as any other.
    /// - If it cannot be paused in time, it goes on, and the error is [`crate::Error::Unavailable`].
    async fn pause(&self, id: &SandboxId) -> Result<()>;

    /// Lets a paused box go on.
    ///
    /// - Commands and connections go on where they were, and nothing of their output is lost.
    /// - Resuming a box that is not paused succeeds.
    /// - A box that does not exist is [`crate::Error::Gone`].
    /// - Works on boxes that an earlier process paused.
    async fn resume(&self, id: &SandboxId) -> Result<()>;

    /// Lists the boxes that are paused.
    async fn paused(&self) -> Result<Vec<SandboxId>>;

    /// Returns whether paused boxes can be written to disk.
    fn can_suspend(&self) -> bool {
        false
    }

    /// Writes a paused box to disk, so that it takes no memory. It is paused as before, and goes on with
    /// [`Pauses::resume`].
    ///
    /// - Its processes go on where they were. What the server had open to the box, commands in the
    ///   foreground and connections, ends.
    /// - It is found and goes on after a restart of the host.
    /// - A repeat succeeds. A box that is not paused is [`crate::Error::Conflict`], one that does not exist
    ///   [`crate::Error::Gone`].
    async fn suspend(&self, id: &SandboxId) -> Result<()> {
        let _ = id;
        Err(crate::Error::NotSupported("this provider cannot write a paused sandbox to disk".to_owned()))
    }

    /// Returns whether the clock of a box's deadline stands still while it is paused, so that the deadline has to be set
    /// again when it is resumed.
    fn stops_clock(&self) -> bool {
        self.can_suspend()
    }

    /// Returns whether a box is on disk. Asks no other host.
    fn is_suspended(&self, id: &SandboxId) -> bool {
        let _ = id;
        false
    }

    /// Returns whether memory of paused boxes can be handed back, as far as is known without a look at
    /// a box.
    fn can_reclaim(&self) -> bool;

    /// Checks that memory of a box can be handed back, before it is paused for that.
    ///
    /// - A box that does not exist is [`crate::Error::Gone`].
    /// - [`crate::Error::NotSupported`], with what is lacking, if it cannot; a provider behind which
    ///   another makes the boxes may say so only in [`Pauses::reclaim`].
    async fn check_reclaim(&self, id: &SandboxId) -> Result<()>;

    /// Hands memory of a paused box back to the system: that of files, which are on a disk, and where
    /// there is swap, of processes. Takes bounded time; less than all is no failure. A caller that
    /// drops the future ends it.
    ///
    /// - Nothing that the box holds is lost, and the box stays paused.
    /// - A box that goes on or is stopped meanwhile does not wait for it.
    /// - A repeat succeeds. A box that does not exist is [`crate::Error::Gone`].
    async fn reclaim(&self, id: &SandboxId) -> Result<Reclaimed>;
}

/// Memory of a box before and after some of it was handed back, in bytes: all that counts to its
/// limit, that of files included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaimed {
    /// Memory before.
    pub memory_before_bytes: u64,
    /// Memory after.
    pub memory_after_bytes: u64,
    /// Means by which it was handed back.
    pub by: ReclaimedBy,
}

/// File of a control group by which the kernel hands memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReclaimedBy {
    /// That of version 2.
    MemoryReclaim,
    /// That of version 1.
    ForceEmpty,
}

impl ReclaimedBy {
    /// Returns the name of the file, which is the name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ReclaimedBy::MemoryReclaim => "memory.reclaim",
            ReclaimedBy::ForceEmpty => "memory.force_empty",
        }
    }

    /// Parses the API's name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [ReclaimedBy::MemoryReclaim, ReclaimedBy::ForceEmpty].into_iter().find(|by| by.as_str() == text)
    }
}
