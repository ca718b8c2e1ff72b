//! Owners of sandboxes and events: who may see them.

use domain::{OwnerId, SandboxId};

use super::error::Result;
use super::service::Control;
use crate::events::Event;

impl Control {
    /// Returns whether `user` may see the sandbox. Every user may learn that a sandbox does not
    /// exist.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn may_know(&self, id: &str, user: &OwnerId) -> Result<bool> {
        let Ok(id) = SandboxId::parse(id) else { return Ok(true) };
        Ok(self.owner_of(&id).await?.is_none_or(|owner| owner.as_ref() == Some(user)))
    }

    /// Returns the owner of a sandbox; `None` if it has none, there is no such sandbox, or the store fails.
    pub async fn owner_of_sandbox(&self, id: &str) -> Option<OwnerId> {
        let id = SandboxId::parse(id).ok()?;
        self.owner_of(&id).await.ok().flatten().flatten()
    }

    /// Returns whether an event is about something of `owner`. One about the service is of nobody.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn is_event_of(&self, event: &Event, owner: &OwnerId) -> Result<bool> {
        if event.owner.is_some() {
            return Ok(event.owner.as_ref() == Some(owner));
        }
        let Some(sandbox) = &event.sandbox else { return Ok(false) };
        Ok(self.owner_of(sandbox).await?.is_some_and(|found| found.as_ref() == Some(owner)))
    }

    /// Returns the owner of a sandbox, if it has one; `None` if there is no such sandbox.
    async fn owner_of(&self, id: &SandboxId) -> Result<Option<Option<OwnerId>>> {
        if let Some(known) = self.owners.get(id) {
            return Ok(Some(known));
        }
        let Some(sandbox) = self.store.sandbox(id).await? else { return Ok(None) };
        self.owners.insert(sandbox.id, sandbox.owner.clone());
        Ok(Some(sandbox.owner))
    }
}
