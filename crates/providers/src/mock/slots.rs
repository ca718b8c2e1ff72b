//! Slots in memory.

use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;

use super::boxed::Boxed;
use super::guest::MockGuest;
use super::{Mock, Place};
use crate::{Error, Found, Guest, Result, Slots, Spec, Started};

impl Mock {
    fn host(&self, host: &SandboxId) -> Option<Arc<Boxed>> {
        self.find(host).filter(|found| !found.dead().is_cancelled())
    }
}

#[async_trait]
impl Slots for Mock {
    async fn start_host(&self, host: &SandboxId, spec: &Spec) -> Result<Started> {
        self.start_in(&Place::Top, host, spec, Boxed::holding_slots).await
    }

    async fn add(&self, host: &SandboxId, slot: &SandboxId, spec: &Spec) -> Result<Started> {
        let host = self.host(host).ok_or(Error::Gone)?;
        self.start_in(&Place::In(Arc::clone(&host)), slot, spec, |made| made.in_box(&host)).await
    }

    async fn remove(&self, host: &SandboxId, slot: &SandboxId) -> Result<()> {
        let Some(host) = self.host(host) else { return Ok(()) };
        match self.stop_in(&Place::In(host), slot).await {
            // The box ended meanwhile, and its slots with it.
            Err(Error::Gone) => Ok(()),
            removed => removed,
        }
    }

    async fn list(&self, host: &SandboxId) -> Result<Vec<Found>> {
        let Some(host) = self.find(host) else { return Ok(Vec::new()) };
        let slots = host.slots();
        let slots = slots.iter().flat_map(|slots| slots.iter());
        Ok(slots.map(|(id, made)| Found { id: id.clone(), alive: !made.dead().is_cancelled() }).collect())
    }

    async fn slot_guest(&self, host: &SandboxId, slot: &SandboxId) -> Result<Arc<dyn Guest>> {
        let found = self.host(host).and_then(|host| host.slots()?.get(slot).cloned());
        match found {
            Some(found) if !found.dead().is_cancelled() => Ok(Arc::new(MockGuest::new(found))),
            _ => Err(Error::Gone),
        }
    }
}
