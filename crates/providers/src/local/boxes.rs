//! Boxes of one provider on this host, with the first process of each.

use std::sync::Arc;

use images::ImageGuard;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::process::Process;
use crate::agent::AgentGuest;
use crate::kept_guests::{KeptGuest, KeptGuests};
use crate::{Error, Guest, Result};

/// Boxes that were asked for since the start.
pub(crate) type Boxes = KeptGuests<Entry>;

/// State of a box in memory. All of it can be found again from disk.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    kept: KeptGuest,
    process: Mutex<Option<Arc<Process>>>,
    /// Hold that keeps its image on disk.
    image: Mutex<Option<ImageGuard>>,
}

impl AsRef<KeptGuest> for Entry {
    fn as_ref(&self) -> &KeptGuest {
        &self.kept
    }
}

impl Entry {
    /// Returns the first process; `None` if it has ended. A process that this server did not
    /// start is found by its `recorded` pid and start time.
    pub(crate) fn process(&self, recorded: Option<(u32, u64)>) -> Result<Option<Arc<Process>>> {
        let mut known = self.process.lock();
        if let Some(process) = &*known {
            return Ok(Some(Arc::clone(process)));
        }
        let Some((pid, started)) = recorded else { return Ok(None) };
        let found = Process::find(pid, started).map_err(|error| Error::failed("find the box's process", error))?;
        *known = found.map(Arc::new);
        Ok(known.clone())
    }

    /// Keeps the image on disk until the entry is dropped.
    pub(crate) fn hold(&self, image: Option<ImageGuard>) {
        *self.image.lock() = image;
    }

    /// Returns whether the box's first process runs, or is about to.
    pub(crate) fn is_alive(&self, recorded: Option<(u32, u64)>) -> bool {
        // A box that is being made has no process yet.
        self.kept.is_changing()
            || self.process(recorded).is_ok_and(|process| process.is_some_and(|process| !process.has_ended()))
    }

    /// Returns whether the first process runs, and was not killed just now; `None` if it was not looked for yet.
    pub(crate) fn runs(&self) -> Option<bool> {
        self.process.lock().as_ref().map(|process| !process.is_ending())
    }

    /// Keeps the process and the connection of a new box, and reaps the process when it ends.
    pub(crate) async fn settle(&self, process: Process, guest: AgentGuest, tasks: &TaskTracker) {
        let process = Arc::new(process);
        self.keep(Arc::clone(&process), guest).await;
        tasks.spawn(async move { process.ended().await });
    }

    /// Keeps the process and the connection of a new box or slot.
    pub(crate) async fn keep(&self, process: Arc<Process>, guest: AgentGuest) {
        *self.process.lock() = Some(process);
        self.kept.keep(guest).await;
    }

    /// Forgets the process and the connection of a box that has none any more.
    pub(crate) async fn leave(&self) {
        *self.process.lock() = None;
        self.kept.hang_up().await;
    }

    /// Ends the kept connection. The next request dials again.
    pub(crate) async fn hang_up(&self) {
        self.kept.hang_up().await;
    }

    /// Returns the kept connection, or what `dial` makes if the first process runs.
    pub(crate) async fn guest(
        &self,
        recorded: Option<(u32, u64)>,
        dial: impl Future<Output = Result<AgentGuest>> + Send,
    ) -> Result<Arc<dyn Guest>> {
        Ok(self.kept.get(|| self.check_runs(recorded), dial).await? as Arc<dyn Guest>)
    }

    /// Fails with [`Error::Gone`] unless the first process runs.
    fn check_runs(&self, recorded: Option<(u32, u64)>) -> Result<()> {
        match self.process(recorded)? {
            Some(process) if !process.has_ended() => Ok(()),
            Some(_) | None => Err(Error::Gone),
        }
    }
}
