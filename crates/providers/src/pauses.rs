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
}
