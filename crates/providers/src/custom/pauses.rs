//! Remote sandboxes that are paused, by the remote service.

use api::PauseRequest;
use async_trait::async_trait;
use domain::SandboxId;

use super::Custom;
use super::labels::{ID_LABEL, STORE_LABEL};
use super::remote::Remote;
use crate::provider::MEMORY_RECLAIM;
use crate::{Error, Pauses, Reclaimed, ReclaimedBy, Result};

const PAUSE: &str = "pause a box";
const RECLAIM: &str = "reclaim the memory of a box";
const RESUME: &str = "resume a box";

#[async_trait]
impl Pauses for Custom {
    /// Pauses also what the remote service sees in use: the caller has decided.
    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let Remote { boxes, .. } = &*self.remote;
        let known = self.remote.running(id).await?;
        let client = self.remote.writing(id)?;
        let pause = PauseRequest { force: true, ..PauseRequest::default() };
        let paused = self.remote.within_of(PAUSE, boxes.generation(id), client.pause(&known.remote, &pause)).await;
        paused.map(drop)
    }

    async fn resume(&self, id: &SandboxId) -> Result<()> {
        let known = self.remote.running(id).await?;
        let client = self.remote.writing(id)?;
        let generation = self.remote.boxes.generation(id);
        self.remote.within_of(RESUME, generation, client.resume(&known.remote)).await.map(drop)
    }

    async fn paused(&self) -> Result<Vec<SandboxId>> {
        let listed = self.remote.listed("list the paused boxes", &[(STORE_LABEL, &self.remote.label)]).await?;
        let paused = listed.into_iter().filter(|sandbox| sandbox.state == "paused");
        Ok(paused.filter_map(|sandbox| SandboxId::parse(sandbox.metadata.0.get(ID_LABEL)?).ok()).collect())
    }

    /// Returns whether the remote provider has the capability; false before the service has shown it.
    fn can_reclaim(&self) -> bool {
        self.remote.reclaims().unwrap_or(false)
    }

    async fn check_reclaim(&self, id: &SandboxId) -> Result<()> {
        self.remote.running(id).await?;
        if self.remote.reclaims() == Some(false) { Err(self.cannot_reclaim()) } else { Ok(()) }
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<Reclaimed> {
        let known = self.remote.running(id).await?;
        let client = self.remote.writing(id)?;
        let generation = self.remote.boxes.generation(id);
        let pause = PauseRequest { force: true, reclaim: true, ..PauseRequest::default() };
        let paused = self.remote.within_of(RECLAIM, generation, client.pause(&known.remote, &pause)).await;
        // An older service does not know the field.
        let reclaimed =
            paused.map_err(|error| if matches!(error, Error::Invalid(_)) { self.cannot_reclaim() } else { error })?;
        let reclaimed = reclaimed.reclaimed.ok_or_else(|| self.cannot_reclaim())?;
        let by = ReclaimedBy::parse(&reclaimed.by)
            .ok_or_else(|| Error::failed(RECLAIM, "the other service reported an unknown way to reclaim memory"))?;
        let api::Reclaimed { memory_before_bytes, memory_after_bytes, .. } = reclaimed;
        Ok(Reclaimed { memory_before_bytes, memory_after_bytes, by })
    }
}

impl Custom {
    fn cannot_reclaim(&self) -> Error {
        Error::NotSupported(format!(
            "the service behind the provider `{}` cannot reclaim the memory of a sandbox; GET /api/v1/providers lists \
             providers with the capability `{MEMORY_RECLAIM}`",
            self.remote.name
        ))
    }
}
