//! Removal of a container and of everything that it wrote.
//!
//! An Engine opens a descriptor for each level of a tree that it removes. A box can make a tree
//! deeper than the Engine has descriptors: the Engine then answers nothing else for a moment, and
//! the tree stays. So where the Engine's disk is this machine's, the server removes such trees
//! itself.

use std::path::PathBuf;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{KillContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use tokio::time::Instant;

use super::direct::FirstProcess;
use super::fault::{self, CHANGE_WAIT, within};
use super::{Inner, container, state, usage};
use crate::Result;

/// Longest wait for a container that another client is removing.
const REMOVAL_WAIT: Duration = Duration::from_secs(20);
/// Pause between two attempts.
const REMOVAL_PERIOD: Duration = Duration::from_millis(20);

impl Inner {
    /// Ends and removes a container with its volumes, if there is one.
    pub(super) async fn remove(&self, client: &Client, name: &str) -> Result<()> {
        let mut is_ours_to_try = self.is_local;
        let mut is_of_snapshot = false;
        if let Some(inspected) = self.inspected(client, name).await {
            is_of_snapshot = container::snapshot_of(&inspected).is_some();
            if inspected.state.as_ref().is_some_and(|state| state.paused == Some(true)) {
                // A runtime may not end what is paused. The removal reports what does not go on.
                let _ = self.unpause(client, name).await;
            }
            if self.is_local {
                self.empty_volumes(client, name, &inspected).await;
            }
        }
        let mut deadline = Instant::now() + REMOVAL_WAIT;
        loop {
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            let error = match within(CHANGE_WAIT, client.remove_container(name, Some(options))).await {
                Ok(()) => break,
                Err(error) => error,
            };
            match fault::status(&error) {
                Some(404) => break,
                Some(500) if is_ours_to_try => {
                    is_ours_to_try = false;
                    self.empty_root(client, name).await;
                    deadline = Instant::now() + REMOVAL_WAIT;
                }
                // Being removed by another client, or in use by a process that is ending.
                Some(409 | 500) if Instant::now() < deadline => tokio::time::sleep(REMOVAL_PERIOD).await,
                _ => return Err(fault::failed("remove a box", error)),
            }
        }
        if is_of_snapshot {
            // The snapshot may have been removed before.
            self.remove_nameless(client).await;
        }
        Ok(())
    }

    /// Removes what a container that has ended wrote to its root.
    async fn empty_root(&self, client: &Client, name: &str) {
        let Some(inspected) = self.inspected(client, name).await else { return };
        if FirstProcess::of(&inspected).is_none() {
            clear(usage::root(&inspected).into_iter().collect()).await;
        }
    }

    /// Ends a container that has volumes of its own, and removes their content: an Engine that
    /// fails to remove a volume reports no error, and keeps it.
    async fn empty_volumes(&self, client: &Client, name: &str, inspected: &ContainerInspectResponse) {
        let volumes = usage::volumes(inspected);
        if volumes.is_empty() {
            return;
        }
        let options = KillContainerOptionsBuilder::default().signal("KILL").build();
        // An error is no concern here: a stopped container needs no end, and the removal reports
        // one that cannot be ended.
        let _ = within(CHANGE_WAIT, client.kill_container(name, Some(options))).await;
        if self.inspected(client, name).await.is_some_and(|inspected| FirstProcess::of(&inspected).is_none()) {
            clear(volumes).await;
        }
    }

    async fn inspected(&self, client: &Client, name: &str) -> Option<ContainerInspectResponse> {
        state::look(client, name).await.ok().flatten()
    }
}

/// Removes trees that no process changes any more. If the Engine's folders are on another
/// machine, the paths do not exist here.
async fn clear(trees: Vec<PathBuf>) {
    let cleared =
        tokio::task::spawn_blocking(move || trees.iter().try_for_each(|tree| host_disk::remove_tree(tree))).await;
    if let Ok(Err(error)) = cleared {
        tracing::info!(%error, "cannot remove a box's files before its container");
    }
}
