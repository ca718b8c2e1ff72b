//! Boxes of a provider, with a lock for changes and a kept connection to the agent of each. All of it can be
//! found again after a restart.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SandboxId;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::Result;
use crate::agent::AgentGuest;

/// Connection to the agent of a box that is kept for all requests.
#[derive(Debug, Default)]
pub(crate) struct KeptGuest {
    /// Lock held while the box is being made, changed or removed.
    change: Arc<AsyncMutex<()>>,
    guest: AsyncMutex<Option<Arc<AgentGuest>>>,
}

impl KeptGuest {
    /// Returns whether the box is being made, changed or removed.
    pub(crate) fn is_changing(&self) -> bool {
        self.change.try_lock().is_err()
    }

    /// Keeps the connection of a new box.
    pub(crate) async fn keep(&self, guest: AgentGuest) {
        *self.guest.lock().await = Some(Arc::new(guest));
    }

    /// Ends the kept connection. The next request dials again.
    pub(crate) async fn hang_up(&self) {
        if let Some(guest) = self.guest.lock().await.take() {
            guest.hang_up();
        }
    }

    /// Returns the kept connection, or keeps and returns what `dial` makes. First `check` says whether the box
    /// is alive, because the end of a box may be known before that of its connection.
    ///
    /// # Errors
    /// Those of `check` and of `dial`.
    pub(crate) async fn get(
        &self,
        check: impl FnOnce() -> Result<()> + Send,
        dial: impl Future<Output = Result<AgentGuest>> + Send,
    ) -> Result<Arc<AgentGuest>> {
        let mut kept = self.guest.lock().await;
        check()?;
        if let Some(guest) = kept.as_ref().filter(|guest| !guest.is_closed()) {
            return Ok(Arc::clone(guest));
        }
        let guest = Arc::new(dial.await?);
        *kept = Some(Arc::clone(&guest));
        Ok(guest)
    }
}

impl AsRef<KeptGuest> for KeptGuest {
    fn as_ref(&self) -> &KeptGuest {
        self
    }
}

/// Boxes that were asked for since the start, with the state `E` of each in memory.
#[derive(Debug, Default)]
pub(crate) struct KeptGuests<E = KeptGuest> {
    entries: Mutex<HashMap<SandboxId, Arc<E>>>,
}

impl<E: Default + AsRef<KeptGuest>> KeptGuests<E> {
    /// Returns the entry of a box, new if the box was not asked for yet.
    pub(crate) fn entry(&self, id: &SandboxId) -> Arc<E> {
        Arc::clone(self.entries.lock().entry(id.clone()).or_default())
    }

    pub(crate) fn known(&self, id: &SandboxId) -> Option<Arc<E>> {
        self.entries.lock().get(id).cloned()
    }

    /// Waits for the lock that a change of the box requires.
    pub(crate) async fn change(&self, id: &SandboxId) -> (Arc<E>, OwnedMutexGuard<()>) {
        loop {
            let entry = self.entry(id);
            let guard = Arc::clone(&(*entry).as_ref().change).lock_owned().await;
            // The entry may have been forgotten during the wait; then others hold another one.
            if self.known(id).is_some_and(|current| Arc::ptr_eq(&current, &entry)) {
                return (entry, guard);
            }
        }
    }

    /// Forgets a box that is gone, unless the box is being changed, or was forgotten and asked for again.
    pub(crate) fn forget_unchanged(&self, id: &SandboxId, entry: &Arc<E>) {
        if let Ok(_change) = (**entry).as_ref().change.try_lock()
            && self.known(id).is_some_and(|current| Arc::ptr_eq(&current, entry))
        {
            self.forget(id);
        }
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        self.entries.lock().remove(id);
    }
}
