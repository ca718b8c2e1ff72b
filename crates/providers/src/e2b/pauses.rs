//! Sandboxes that are paused, by the service.

use async_trait::async_trait;
use domain::SandboxId;

use super::E2b;
use super::fault::control_fault;
use super::labels::ID_LABEL;
use crate::{Error, Pauses, Reclaimed, Result};

const PAUSE: &str = "pause a box";
const RESUME: &str = "resume a box";

#[async_trait]
impl Pauses for E2b {
    /// Pauses a sandbox. What this server has open to it ends, because the service writes it to disk.
    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let known = self.remote.running(id).await?;
        match self.remote.control.pause(&known.sandbox).await {
            Ok(()) => Ok(()),
            // It is paused already.
            Err(fault) if fault.is_status(409) => Ok(()),
            Err(fault) => Err(control_fault(PAUSE, fault)),
        }
    }

    /// Resumes a sandbox, with the lifetime that is left to it.
    async fn resume(&self, id: &SandboxId) -> Result<()> {
        let known = self.remote.running(id).await?;
        let described = self.remote.look(&known).await?.ok_or(Error::Gone)?;
        if described.state != "paused" {
            return Ok(());
        }
        // Of a box that an earlier process has paused the time is not known; the caller sets it afterwards.
        let left = known.time_left().filter(|left| !left.is_zero()).unwrap_or(self.rules.lifetime_max);
        let seconds = self.rules.seconds_within(left);
        let made = self.remote.control.connect(&known.sandbox, seconds).await;
        made.map_err(|fault| control_fault(RESUME, fault))?;
        known.resumed.notify_waiters();
        Ok(())
    }

    async fn paused(&self) -> Result<Vec<SandboxId>> {
        let listed = self.remote.all("list the paused boxes").await?;
        let paused = listed.iter().filter(|sandbox| sandbox.state == "paused");
        Ok(paused.filter_map(|sandbox| SandboxId::parse(sandbox.label(ID_LABEL)?).ok()).collect())
    }

    fn stops_clock(&self) -> bool {
        true
    }

    fn can_reclaim(&self) -> bool {
        false
    }

    async fn check_reclaim(&self, id: &SandboxId) -> Result<()> {
        self.remote.running(id).await?;
        Err(cannot_reclaim())
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<Reclaimed> {
        self.check_reclaim(id).await?;
        Err(cannot_reclaim())
    }
}

fn cannot_reclaim() -> Error {
    Error::NotSupported(
        "the provider `e2b` has no memory of a paused sandbox to reclaim: the service has written it to disk"
            .to_owned(),
    )
}
