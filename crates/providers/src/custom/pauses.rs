//! Remote sandboxes that are paused, by the remote service.

use async_trait::async_trait;
use domain::SandboxId;

use super::Custom;
use super::labels::{ID_LABEL, STORE_LABEL};
use super::remote::Remote;
use crate::{Pauses, Result};

const PAUSE: &str = "pause a box";
const RESUME: &str = "resume a box";

#[async_trait]
impl Pauses for Custom {
    /// Pauses also what the remote service sees in use: the caller has decided.
    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let Remote { boxes, .. } = &*self.remote;
        let known = self.remote.running(id).await?;
        let client = self.remote.writing(id)?;
        let paused = self.remote.within_of(PAUSE, boxes.generation(id), client.pause(&known.remote, true)).await;
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
}
