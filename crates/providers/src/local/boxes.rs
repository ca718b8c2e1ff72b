//! Boxes of one provider, with a lock for changes and a kept connection for each.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SandboxId;
use images::ImageGuard;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::task::TaskTracker;

use super::process::Process;
use crate::agent::AgentGuest;
use crate::{Error, Guest, Result};

/// State of a box in memory. All of it can be found again from disk.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Lock held while the box is being made or removed.
    change: Arc<AsyncMutex<()>>,
    process: Mutex<Option<Arc<Process>>>,
    /// Hold that keeps its image on disk.
    image: Mutex<Option<ImageGuard>>,
    /// Kept connection to the agent.
    guest: AsyncMutex<Option<Arc<AgentGuest>>>,
}

impl Entry {
    /// Returns whether the box is being made or removed.
    pub(crate) fn is_changing(&self) -> bool {
        self.change.try_lock().is_err()
    }

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
        self.is_changing()
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
        *self.guest.lock().await = Some(Arc::new(guest));
    }

    /// Forgets the process and the connection of a box that has none any more.
    pub(crate) async fn leave(&self) {
        *self.process.lock() = None;
        self.hang_up().await;
    }

    /// Ends the kept connection. The next one is made anew.
    pub(crate) async fn hang_up(&self) {
        if let Some(guest) = self.guest.lock().await.take() {
            guest.hang_up();
        }
    }

    /// Returns the kept connection, or what `dial` makes if the first process runs.
    pub(crate) async fn guest(
        &self,
        recorded: Option<(u32, u64)>,
        dial: impl Future<Output = Result<AgentGuest>> + Send,
    ) -> Result<Arc<dyn Guest>> {
        let mut kept = self.guest.lock().await;
        // The end of the process may be known before that of the connection.
        if self.process(recorded)?.is_none_or(|process| process.has_ended()) {
            return Err(Error::Gone);
        }
        if let Some(guest) = kept.as_ref().filter(|guest| !guest.is_closed()) {
            return Ok(Arc::clone(guest) as Arc<dyn Guest>);
        }
        let guest = Arc::new(dial.await?);
        *kept = Some(Arc::clone(&guest));
        Ok(guest)
    }
}

/// Boxes that were asked for since the start.
#[derive(Debug, Default)]
pub(crate) struct Boxes {
    entries: Mutex<HashMap<SandboxId, Arc<Entry>>>,
}

impl Boxes {
    pub(crate) fn entry(&self, id: &SandboxId) -> Arc<Entry> {
        Arc::clone(self.entries.lock().entry(id.clone()).or_default())
    }

    pub(crate) fn known(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.entries.lock().get(id).cloned()
    }

    /// Waits for the lock that making or removing the box requires.
    pub(crate) async fn change(&self, id: &SandboxId) -> (Arc<Entry>, OwnedMutexGuard<()>) {
        loop {
            let entry = self.entry(id);
            let guard = Arc::clone(&entry.change).lock_owned().await;
            // The entry may have been forgotten during the wait; then others hold another one.
            if self.known(id).is_some_and(|current| Arc::ptr_eq(&current, &entry)) {
                return (entry, guard);
            }
        }
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        self.entries.lock().remove(id);
    }
}
