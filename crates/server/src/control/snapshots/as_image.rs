//! Images of snapshots, of which providers that did not take the snapshot make sandboxes.
//!
//! Such an image has all files of a sandbox of the snapshot, as one is made for it alone, and the settings
//! of the sandbox's own image. It is in the image store under a name of the snapshot, where it may be
//! removed at any time: the next spawn that needs it makes it again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{SandboxId, SnapshotId};
use futures_util::StreamExt;
use images::{Images, Run};
use providers::{Chain, Phase, Provider, Spec};
use serde_json::json;

use super::image_names::{NAMES, name_of};
use super::{SNAPSHOT_WAIT, snapshots_of};
use crate::control::error::{Error, Result, provider_error};
use crate::control::images::fault;
use crate::control::service::Control;
use crate::control::spawn::Plan;
use crate::control::unavailable::{Unavailable, Unhealthy};
use crate::control::workers::inventory::{REMOVAL_WAIT, within};
use crate::events::EventType;
use store::Snapshot;

/// Lifetime of the sandbox whose files are read, should the server crash.
const LIFETIME: Duration = SNAPSHOT_WAIT.saturating_mul(2);

impl Control {
    /// Makes the image of the snapshot that a plan names for it, unless it is there. Goes on if the caller
    /// goes away. Returns the plan with the image, and the time that it took.
    pub(in crate::control) async fn with_image_of_snapshot(
        self: &Arc<Self>,
        mut plan: Plan,
    ) -> Result<(Plan, Vec<Phase>)> {
        let Some(snapshot) = plan.imaged.take() else { return Ok((plan, Vec::new())) };
        let (control, begin) = (Arc::clone(self), Instant::now());
        let making = self.tasks.spawn(async move { control.image_of_snapshot(&snapshot).await });
        // The name could mean another image by the time that the box is made.
        let digest = making.await.unwrap_or_else(|_| Err(Unavailable::ShuttingDown.into()))?;
        plan.new.sandbox.image.clone_from(&digest);
        plan.spec.image = digest;
        Ok((plan, vec![Phase { name: "snapshot_image", took: begin.elapsed() }]))
    }

    /// Returns the digest of the image of a snapshot.
    async fn image_of_snapshot(self: &Arc<Self>, snapshot: &Snapshot) -> Result<String> {
        let (store, name) = (self.image_store()?, name_of(&snapshot.id));
        let _turn = self.snapshotting.images.take(&snapshot.id).await;
        if let Some(digest) = store.find(&name).map_err(|error| fault(&name, error))? {
            return Ok(digest);
        }
        let _place = self.snapshotting.in_progress.place().await;
        let offer = self.offer(Some(&snapshot.provider)).await?;
        let provider = offer.here.ok_or_else(|| Unavailable::ProviderUnhealthy {
            provider: snapshot.provider.clone(),
            unhealthy: Unhealthy::KeepsSnapshot { snapshot: snapshot.id.clone() },
        })?;
        let settings = snapshots_of(provider.as_ref())?.image_settings(&snapshot.id).await;
        let settings = settings.map_err(|error| {
            if let providers::Error::NotSupported(why) = error {
                return Error::NotSupported(format!(
                    "only `{}` makes sandboxes from the snapshot `{}`: {why}; leave out `provider`",
                    snapshot.provider, snapshot.id
                ));
            }
            provider_error(&snapshot.provider, error)
        })?;
        let id = SandboxId::from_entropy(rand::random());
        let _in_progress = self.spawns.begin(&id);
        let packed = tokio::time::timeout(SNAPSHOT_WAIT, pack(provider.as_ref(), &id, snapshot, settings, store)).await;
        if let Err(error) = within(REMOVAL_WAIT, provider.stop(&id)).await {
            tracing::warn!(%id, error = %Chain(&error), "cannot remove the box of a new image; retrying later");
        }
        let digest = packed.unwrap_or_else(|_| {
            let snapshot = snapshot.id.clone();
            Err(Unavailable::SnapshotImageLate { snapshot, waited: SNAPSHOT_WAIT }.into())
        })?;
        self.publish(EventType::ImagePulled, None, json!({"image": name, "digest": digest}));
        Ok(digest)
    }

    /// Removes the image of a snapshot that is removed. One that boxes hold is left for the reconciler.
    pub(in crate::control) async fn remove_image_of_snapshot(&self, id: &SnapshotId) -> Result<()> {
        let Ok(store) = self.image_store() else { return Ok(()) };
        let name = name_of(id);
        if store.find(&name).is_ok_and(|found| found.is_none()) {
            return Ok(());
        }
        match store.remove(&name).await {
            Ok(()) => {
                self.publish(EventType::ImageRemoved, None, json!({"image": name}));
                Ok(())
            }
            Err(images::Error::NotFound(_) | images::Error::Conflict(_)) => Ok(()),
            Err(error) => Err(fault(&name, error)),
        }
    }

    /// Removes the images whose snapshots are gone.
    pub(in crate::control) async fn remove_images_of_snapshots(&self) -> Result<()> {
        let Ok(store) = self.image_store() else { return Ok(()) };
        for name in store.names_from(NAMES) {
            let Ok(id) = SnapshotId::parse(name.strip_prefix(NAMES).unwrap_or_default()) else { continue };
            if self.store.snapshot(&id).await?.is_none() {
                self.remove_image_of_snapshot(&id).await?;
            }
        }
        Ok(())
    }
}

/// Makes an image of the files of a snapshot, as they are in the box `id` that is made of it, and returns
/// its digest. The box is not removed.
async fn pack(
    provider: &dyn Provider,
    id: &SandboxId,
    snapshot: &Snapshot,
    settings: Run,
    store: &Images,
) -> Result<String> {
    let spec = Spec {
        image: snapshot.image.clone(),
        resources: snapshot.resources,
        entrypoint: false,
        metadata: domain::Metadata::default(),
        lifetime: LIFETIME,
        trust: None,
        snapshot: Some(snapshot.id.clone()),
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    };
    let files = async {
        provider.start(id, &spec).await?;
        provider.guest(id).await?.whole_archive().await
    };
    let files = files.await.map_err(|error| provider_error(&snapshot.provider, error))?;
    let files = files.map(|part| {
        part.map_err(|error| {
            images::Error::Unavailable(format!("the files of the snapshot cannot be read: {}", Chain(&error)))
        })
    });
    let name = name_of(&snapshot.id);
    let image = store.import_root(&name, settings, files.boxed()).await.map_err(|error| fault(&name, error))?;
    Ok(image.digest)
}
