//! Watches of the ports of running boxes.

use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, State, WorkerId};
use providers::PortChanges;

use crate::control::error::Result;
use crate::control::service::Control;

impl Control {
    /// Watches every running box of this server that is not watched: a new one, one from before a
    /// restart, or one whose connection broke.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn watch_all_ports(self: &Arc<Self>) -> Result<()> {
        let Some(interval) = self.port_watch.interval() else { return Ok(()) };
        let running = self.store.ids_in(&[State::Running, State::Paused], &WorkerId::local(), None).await?;
        for id in self.port_watch.unwatched(running) {
            if !self.is_in_hand(&id) {
                let (control, of) = (Arc::clone(self), id.clone());
                self.port_watch.watch(id, async move { control.watch_ports(&of, interval).await });
            }
        }
        Ok(())
    }

    async fn watch_ports(&self, id: &SandboxId, interval: Duration) -> providers::Result<PortChanges> {
        let failed = |error| providers::Error::failed("find the box whose ports are watched", error);
        let sandbox = self.store.sandbox(id).await.map_err(failed)?;
        let sandbox = sandbox.filter(|sandbox| sandbox.state == State::Running).ok_or(providers::Error::Gone)?;
        let Some(entry) = self.registry.get(&sandbox.provider) else { return Err(providers::Error::Gone) };
        entry.provider.guest(id).await?.watch_ports(interval).await
    }
}
