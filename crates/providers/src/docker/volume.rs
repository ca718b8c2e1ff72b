//! Volume with the agent, which containers mount.
//!
//! There is one volume for each store and agent version, which boxes mount read-only. Uploading
//! the agent to a volume of each box took a quarter of the time of a whole spawn, since the
//! Engine runs a process of its own to unpack it, and a box could change its own volume.

use std::collections::HashMap;

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptions,
    UploadToContainerOptionsBuilder,
};
use domain::StoreId;
use guest_protocol::AGENT_DIR;
use tokio::sync::Mutex;

use super::container::agent_mount;
use super::fault::{self, CHANGE_WAIT, LOOK_WAIT, within};
use super::labels::STORE_LABEL;
use crate::local::agent_file::{agent_program, agent_version};

/// Label of this program's volumes, with the digest of the agent.
const AGENT_LABEL: &str = "tidebox.agent";

/// Volume that holds this server's agent.
#[derive(Debug)]
pub(super) struct AgentVolume {
    name: String,
    digest: String,
    store: StoreId,
    /// True once it was filled since this server started.
    is_filled: Mutex<bool>,
}

impl AgentVolume {
    pub(super) fn new(store: &StoreId) -> AgentVolume {
        let digest = agent_version();
        let name = format!("tidebox-{}-agent-{digest}", store.as_str());
        AgentVolume { name, digest, store: store.clone(), is_filled: Mutex::new(false) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes and fills the volume, unless this server has done so. `image` is any image of the
    /// Engine; nothing of it runs.
    pub(super) async fn fill(&self, client: &Client, image: &str) -> Result<(), ClientError> {
        let mut is_filled = self.is_filled.lock().await;
        if *is_filled {
            return Ok(());
        }
        let labels = [(STORE_LABEL, self.store.as_str()), (AGENT_LABEL, self.digest.as_str())];
        let labels: HashMap<String, String> =
            labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let volume = VolumeCreateRequest {
            name: Some(self.name.clone()),
            labels: Some(labels.clone()),
            ..VolumeCreateRequest::default()
        };
        within(CHANGE_WAIT, client.create_volume(volume)).await?;
        let helper = format!("{}-upload", self.name);
        // Left by a server that was killed.
        remove(client, &helper).await?;
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec!["/".to_owned()]),
            labels: Some(labels),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
                mounts: Some(vec![agent_mount(&self.name, false)]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(&helper).build();
        within(CHANGE_WAIT, client.create_container(Some(options), body)).await?;
        let options = UploadToContainerOptionsBuilder::default().path(AGENT_DIR).build();
        let archive = archive().map_err(ClientError::from)?;
        let upload = client.upload_to_container(&helper, Some(options), bollard::body_full(archive.into()));
        let uploaded = within(CHANGE_WAIT, upload).await;
        remove(client, &helper).await?;
        uploaded?;
        *is_filled = true;
        self.remove_others(client).await;
        Ok(())
    }

    /// Makes the next [`AgentVolume::fill`] fill it again, after it was removed.
    pub(super) async fn forget(&self) {
        *self.is_filled.lock().await = false;
    }

    /// Removes the volumes of earlier releases that no box uses any more.
    async fn remove_others(&self, client: &Client) {
        let filter =
            HashMap::from([("label", vec![format!("{STORE_LABEL}={}", self.store.as_str()), AGENT_LABEL.to_owned()])]);
        let options = ListVolumesOptionsBuilder::default().filters(&filter).build();
        let Ok(listed) = within(LOOK_WAIT, client.list_volumes(Some(options))).await else { return };
        for volume in listed.volumes.unwrap_or_default().into_iter().filter(|volume| volume.name != self.name) {
            // The Engine refuses for one in use; the next server tries again.
            let _ = within(CHANGE_WAIT, client.remove_volume(&volume.name, None::<RemoveVolumeOptions>)).await;
        }
    }
}

async fn remove(client: &Client, container: &str) -> Result<(), ClientError> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    match within(CHANGE_WAIT, client.remove_container(container, Some(options))).await {
        Err(error) if !matches!(fault::status(&error), Some(404 | 409)) => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns an archive of the agent and the folder on which its tmpfs is mounted.
fn archive() -> std::io::Result<Vec<u8>> {
    let agent = agent_program();
    let mut archive = tar::Builder::new(Vec::with_capacity(agent.len() + 4096));
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    // Some runtimes give a tmpfs the mode of its mount point.
    header.set_mode(0o1777);
    header.set_size(0);
    archive.append_data(&mut header, "run/", std::io::empty())?;
    let mut header = tar::Header::new_gnu();
    // Not readable: the kernel protects a process of an unprivileged user from others if its
    // program is not readable.
    header.set_mode(0o111);
    header.set_size(agent.len() as u64);
    archive.append_data(&mut header, "agent", agent.as_slice())?;
    archive.into_inner()
}
