//! Snapshots of boxes: images that the Engine commits of their containers.
//!
//! The image of a snapshot has a name in a registry that cannot exist, and a label with the settings
//! of the image below it: its own are those of the box, whose first process is the agent. An image
//! that boxes or other snapshots still need loses only its name with the snapshot, and is removed
//! when the last of them goes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerConfig, ContainerInspectResponse, ImageSummary};
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptions, RemoveImageOptionsBuilder,
};
use domain::{SandboxId, SnapshotId};
use guest_protocol::{AGENT_DIR, Defaults};
use images::Run;
use serde::{Deserialize, Serialize};

use super::container::{self, WORKSPACE};
use super::fault::{self, LOOK_WAIT, within};
use super::image::{self, Image};
use super::labels::{ORIGIN_LABEL, REGISTRY, STORE_LABEL};
use super::state::{self, State};
use super::{Docker, Inner, has_own_kernel};
use crate::{Error, Result, Snapshots, Taken};

const TAKE: &str = "take a snapshot";
/// Limit for a commit or a removal, in which the Engine reads or deletes every file that a box has changed. One
/// image is removed at a time, so a removal also waits for others.
const LAYER_WAIT: Duration = Duration::from_secs(600);

/// Settings of the image below a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    defaults: Defaults,
    entrypoint: Vec<String>,
    /// Bytes of its layers, which are no part of a snapshot.
    pub(super) image_bytes: u64,
}

impl Origin {
    /// Returns the settings for a snapshot of a box that was made of `image`, which is a snapshot's
    /// itself if `of_snapshot`.
    fn of(image: &Image, of_snapshot: bool) -> Result<Origin> {
        if of_snapshot {
            return Origin::read(image);
        }
        let Run { defaults, entrypoint } = image.run.clone();
        Ok(Origin { defaults, entrypoint, image_bytes: image.size_bytes })
    }

    fn read(image: &Image) -> Result<Origin> {
        let label = image.labels.get(ORIGIN_LABEL).and_then(|label| serde_json::from_str(label).ok());
        label.ok_or_else(|| {
            Error::failed("read a snapshot", format!("its image {} has no label {ORIGIN_LABEL}", image.id))
        })
    }
}

impl Inner {
    /// Returns whether a commit would have the files of a box of this configuration.
    pub(super) fn keeps_files(&self) -> bool {
        let config = &self.config;
        config.user.is_empty()
            && !config.read_only_rootfs
            && !config.tmpfs.contains_key(WORKSPACE)
            && !has_own_kernel(&self.runtime(self.engine.about().as_ref()))
    }

    /// Returns the image of a snapshot, with the settings of the one below it.
    pub(super) async fn image_of(&self, client: &Client, snapshot: &SnapshotId) -> Result<Image> {
        let found = image::inspect(client, &self.image_name(snapshot)).await?;
        let found = found.ok_or_else(|| Error::NotFound(format!("there is no snapshot {snapshot}")))?;
        let Origin { defaults, entrypoint, .. } = Origin::read(&found)?;
        Ok(Image { run: Run { defaults, entrypoint }, ..found })
    }

    /// Removes images without a name that no container and no other image needs: those of snapshots
    /// that were removed. What cannot be removed now is tried again with the next.
    pub(super) async fn remove_nameless(&self, client: &Client) {
        let Some(_alone) = self.takes.none_is_named() else { return };
        let removed = async {
            for nameless in self.images_with(client, ("dangling", "true".to_owned())).await? {
                match remove_image(client, &nameless.id, false).await {
                    // A container needs it.
                    Err(error) if fault::status(&error) == Some(409) => {}
                    removed => removed?,
                }
            }
            Ok::<_, ClientError>(())
        };
        if let Err(error) = removed.await {
            tracing::info!(%error, "cannot remove images of removed snapshots; retrying later");
        }
    }

    /// Returns the repository of the images of this store's snapshots.
    fn repository(&self) -> String {
        format!("{REGISTRY}/{}", self.config.store_id.as_str())
    }

    fn image_name(&self, snapshot: &SnapshotId) -> String {
        format!("{}:{}", self.repository(), snapshot.as_str())
    }

    /// Lists the images of this store that match.
    async fn images_with(
        &self,
        client: &Client,
        (filter, value): (&str, String),
    ) -> Result<Vec<ImageSummary>, ClientError> {
        let store = format!("{STORE_LABEL}={}", self.config.store_id.as_str());
        let filters = HashMap::from([("label", vec![store]), (filter, vec![value])]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        within(LOOK_WAIT, client.list_images(Some(options))).await
    }

    /// Commits the container of a box, while its processes stand still.
    async fn take(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Taken> {
        let client = self.client()?;
        let name = self.name(id);
        let Some(found) = state::look(client, &name).await?.filter(|found| State::of(found) != State::NotRunning)
        else {
            self.boxes.forget(id);
            return Err(Error::Gone);
        };
        self.check_keeps_all(&found)?;
        let below = image::inspect(client, found.image.as_deref().unwrap_or_default()).await?;
        let below = below.ok_or_else(|| Error::failed(TAKE, "the Engine has lost the image of the box"))?;
        let origin = Origin::of(&below, container::snapshot_of(&found).is_some())?;
        let label = serde_json::to_string(&origin).map_err(|error| Error::failed(TAKE, error))?;
        let config = ContainerConfig {
            labels: Some(HashMap::from([
                (STORE_LABEL.to_owned(), self.config.store_id.as_str().to_owned()),
                (ORIGIN_LABEL.to_owned(), label),
            ])),
            ..ContainerConfig::default()
        };
        let options = CommitContainerOptionsBuilder::default()
            .container(&name)
            .repo(&self.repository())
            .tag(snapshot.as_str())
            .pause(true)
            .build();
        let _naming = self.takes.naming().await;
        let patient = client.clone().with_timeout(LAYER_WAIT);
        within(LAYER_WAIT, patient.commit_container(options, config)).await.map_err(not_committed)?;
        let made = image::inspect(client, &self.image_name(snapshot)).await?;
        let made = made.ok_or_else(|| Error::failed(TAKE, "the Engine has lost its image"))?;
        Ok(Taken { size_bytes: made.size_bytes.saturating_sub(origin.image_bytes), has_memory: false })
    }

    /// Refuses a snapshot that would lack files of the box: a commit has those of the container's root
    /// alone. The box may be of an earlier configuration.
    fn check_keeps_all(&self, container: &ContainerInspectResponse) -> Result<()> {
        let host = container.host_config.as_ref();
        let in_memory = host.and_then(|host| host.tmpfs.as_ref()).is_some_and(|tmpfs| tmpfs.contains_key(WORKSPACE));
        if in_memory || host.is_some_and(|host| host.readonly_rootfs == Some(true)) {
            return Err(Error::NotSupported(format!(
                "{WORKSPACE} of the sandbox is in memory, as configured in providers.docker, so it has no snapshots"
            )));
        }
        let runtime = host.and_then(|host| host.runtime.clone()).filter(|runtime| !runtime.is_empty());
        let runtime = runtime.unwrap_or_else(|| self.runtime(self.engine.about().as_ref()));
        if has_own_kernel(&runtime) {
            return Err(Error::NotSupported(format!(
                "the runtime {runtime} does not expose the files of the sandbox, so it has no snapshots"
            )));
        }
        let volumes = container.mounts.iter().flatten().filter(|mount| mount.typ.as_deref() == Some("volume"));
        let targets = volumes.filter_map(|mount| mount.destination.as_deref());
        let apart: Vec<&str> = targets.filter(|target| *target != AGENT_DIR).collect();
        if apart.is_empty() {
            return Ok(());
        }
        Err(Error::NotSupported(format!(
            "the image of the sandbox has volumes ({}), whose files a snapshot would lack; use an image without VOLUME",
            apart.join(", ")
        )))
    }
}

#[async_trait]
impl Snapshots for Docker {
    async fn take(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Taken> {
        // Here and not in the task: a removal that comes after this call was dropped must wait for it.
        let take = self.inner.takes.begin(snapshot);
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let snapshot = snapshot.clone();
        let work = async move {
            let _take = take;
            let (_entry, _change) = inner.boxes.change(&id).await;
            let taken = inner.take(&id, &snapshot).await;
            if taken.is_err()
                && let Ok(client) = inner.client()
                && let Err(error) = remove_image(client, &inner.image_name(&snapshot), true).await
            {
                tracing::warn!(%snapshot, %error, "cannot remove the remains of a snapshot that could not be taken");
            }
            taken
        };
        self.tracked(work, TAKE).await
    }

    async fn image_settings(&self, snapshot: &SnapshotId) -> Result<Run> {
        Ok(self.inner.image_of(self.inner.client()?, snapshot).await?.run)
    }

    async fn left_bytes(&self) -> Result<u64> {
        let kept = self.inner.kept_images(self.inner.client()?).await;
        Ok(kept.map_err(|error| fault::failed("measure the snapshots", error))?.left_bytes())
    }

    async fn held_bytes(&self, id: &SandboxId) -> Result<u64> {
        let held = self.inner.held_by(self.inner.client()?, &self.inner.name(id)).await;
        held.map_err(|error| fault::failed("measure a box", error))
    }

    async fn remove(&self, snapshot: &SnapshotId) -> Result<()> {
        self.inner.takes.ended(snapshot).await;
        let client = self.inner.client()?;
        let removed = remove_image(client, &self.inner.image_name(snapshot), true).await;
        removed.map_err(|error| fault::failed("remove a snapshot", error))?;
        // Images of snapshots below it, whose name went earlier.
        self.inner.remove_nameless(client).await;
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SnapshotId>> {
        let client = self.inner.client()?;
        let repository = self.inner.repository();
        // A server that was killed has removed none.
        self.inner.remove_nameless(client).await;
        let listed = self.inner.images_with(client, ("reference", repository.clone())).await;
        let listed = listed.map_err(|error| fault::failed("list the snapshots", error))?;
        let names = listed.iter().flat_map(|image| &image.repo_tags);
        let mut ids: Vec<SnapshotId> = names
            .filter_map(|name| SnapshotId::parse(name.strip_prefix(&repository)?.strip_prefix(':')?).ok())
            .collect();
        ids.extend(self.inner.takes.running());
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

/// Removes an image, if there is one. By its name, and with `force`, only the name goes while a container
/// or another image needs the rest.
async fn remove_image(client: &Client, image: &str, force: bool) -> Result<(), ClientError> {
    let options: RemoveImageOptions = RemoveImageOptionsBuilder::default().force(force).build();
    let patient = client.clone().with_timeout(LAYER_WAIT);
    match within(LAYER_WAIT, patient.remove_image(image, Some(options), None)).await {
        Err(error) if fault::status(&error) != Some(404) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Converts the Engine's refusal to commit.
fn not_committed(error: ClientError) -> Error {
    match fault::refusal(&error) {
        Some((404, _)) => Error::Gone,
        Some((_, message)) if message.contains("max depth exceeded") => Error::Invalid(
            "the sandbox was made from nested snapshots with more layers than the Docker Engine allows; spawn one from \
             the image and copy the files into it"
                .to_owned(),
        ),
        _ => fault::failed(TAKE, error),
    }
}
