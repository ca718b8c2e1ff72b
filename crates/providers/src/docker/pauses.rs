//! Containers that are paused, by the Engine.

use std::sync::Arc;

use async_trait::async_trait;
use bollard::Docker as Client;
use bollard::models::ContainerSummaryStateEnum;
use domain::SandboxId;

use super::direct::{self, FirstProcess};
use super::fault::{self, CHANGE_WAIT, within};
use super::state::{self, State};
use super::{Docker, Inner};
use crate::local::agent_file::AgentFile;
use crate::local::cgroup::memory::{MemoryGroup, host_can_reclaim};
use crate::{Error, Pauses, Reclaimed, Result};

impl Inner {
    /// Lets a paused container go on.
    pub(super) async fn unpause(&self, client: &Client, name: &str) -> Result<()> {
        let Err(error) = within(CHANGE_WAIT, client.unpause_container(name)).await else { return Ok(()) };
        // The Engine hears of a change from the runtime, too, and may for a moment say what was before it.
        match state::state(client, name).await {
            Ok(State::Running(_)) => Ok(()),
            Ok(State::Paused | State::NotRunning | State::Absent) | Err(_) => Err(fault::failed("resume a box", error)),
        }
    }

    /// Stops the processes of a container where they are.
    async fn halt(&self, client: &Client, name: &str) -> Result<()> {
        let Err(error) = within(CHANGE_WAIT, client.pause_container(name)).await else { return Ok(()) };
        match state::state(client, name).await {
            Ok(State::Paused) => Ok(()),
            Ok(State::Running(_) | State::NotRunning | State::Absent) | Err(_) => {
                Err(fault::failed("pause a box", error))
            }
        }
    }

    /// Returns the control group that counts the memory of a box, which has to be on this machine.
    async fn memory(&self, id: &SandboxId) -> Result<MemoryGroup> {
        const ACTION: &str = "inspect a box";
        let inspected = state::look(self.client()?, &self.name(id)).await?.ok_or(Error::Gone)?;
        let process = FirstProcess::of(&inspected).ok_or(Error::Gone)?;
        if !direct::is_here(&process) {
            return Err(elsewhere());
        }
        let group = MemoryGroup::of_process(process.pid).map_err(|error| Error::failed(ACTION, error))?;
        let group = group.ok_or_else(elsewhere)?;
        group.check_reclaim().map(|()| group)
    }
}

fn elsewhere() -> Error {
    Error::NotSupported(
        "the memory of a container is reclaimed through its control group, which the server cannot see: run the Engine \
         on the server's machine, and the server outside of containers"
            .to_owned(),
    )
}

#[async_trait]
impl Pauses for Docker {
    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let work = async move {
            let (_entry, _change) = inner.boxes.change(&id).await;
            let client = inner.client()?;
            let name = inner.name(&id);
            match state::state(client, &name).await? {
                State::Running(_) => {}
                State::Paused => return Ok(()),
                State::NotRunning | State::Absent => {
                    inner.boxes.forget(&id);
                    return Err(Error::Gone);
                }
            }
            inner.halt(client, &name).await
        };
        self.tracked(work, "pause a box").await
    }

    async fn resume(&self, id: &SandboxId) -> Result<()> {
        let (_entry, _change) = self.inner.boxes.change(id).await;
        let client = self.inner.client()?;
        let name = self.inner.name(id);
        match state::state(client, &name).await? {
            State::Running(_) => Ok(()),
            State::Paused => self.inner.unpause(client, &name).await,
            State::NotRunning | State::Absent => {
                self.inner.boxes.forget(id);
                Err(Error::Gone)
            }
        }
    }

    async fn paused(&self) -> Result<Vec<SandboxId>> {
        let listed = self.inner.containers().await?.into_iter();
        Ok(listed.filter(|(_, state)| *state == ContainerSummaryStateEnum::PAUSED).map(|(id, _)| id).collect())
    }

    fn can_reclaim(&self) -> bool {
        self.inner.is_local && host_can_reclaim()
    }

    async fn check_reclaim(&self, id: &SandboxId) -> Result<()> {
        self.inner.memory(id).await.map(drop)
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<Reclaimed> {
        let group = self.inner.memory(id).await?;
        let agent = tokio::task::spawn_blocking(AgentFile::sealed).await;
        let agent = agent.map_err(|error| Error::failed("reclaim the memory of a box", error))??;
        group.reclaim(&agent).await
    }
}
