//! Containers of boxes that the Engine holds.

use std::collections::HashMap;

use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::ListContainersOptionsBuilder;
use domain::SandboxId;

use super::Inner;
use super::fault::{self, LOOK_WAIT, within};
use super::labels::{SANDBOX_LABEL, STORE_LABEL};
use crate::{Found, Result};

impl Inner {
    /// Lists the containers of boxes with their states.
    pub(super) async fn containers(&self) -> Result<Vec<(SandboxId, ContainerSummaryStateEnum)>> {
        let client = self.client()?;
        let store = format!("{STORE_LABEL}={}", self.config.store_id.as_str());
        let filter = HashMap::from([("label", vec![store, SANDBOX_LABEL.to_owned()])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filter).build();
        let listed = within(LOOK_WAIT, client.list_containers(Some(options))).await;
        let listed = listed.map_err(|error| fault::failed("list the boxes", error))?;
        let boxes = listed.into_iter().filter_map(|container| {
            let id = SandboxId::parse(container.labels?.get(SANDBOX_LABEL)?).ok()?;
            // A container with copied labels, or a renamed one, is not the box.
            let name = format!("/{}", self.name(&id));
            if !container.names?.contains(&name) {
                return None;
            }
            Some((id, container.state.unwrap_or(ContainerSummaryStateEnum::EMPTY)))
        });
        Ok(boxes.collect())
    }

    pub(super) async fn inventory(&self) -> Result<Vec<Found>> {
        let found = self.containers().await?.into_iter().map(|(id, state)| {
            // A box that is being made is not running yet.
            let alive = matches!(state, ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED)
                || self.boxes.known(&id).is_some_and(|entry| entry.is_changing());
            Found { alive, id }
        });
        Ok(found.collect())
    }
}
