//! Images: those in the store, and their pull, import and removal.

use std::sync::Arc;

use domain::{Asker, OwnerId};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use images::{Archive, Detail, Image, Images, Progress, Pruned};
use providers::{Provider, Spec};
use serde_json::json;
use tokio::sync::mpsc;

use super::conflict::Conflict;
use super::error::{Error, Result};
use super::full::Full;
use super::invalid::InvalidImage;
use super::resource::Resource;
use super::service::Control;
use super::snapshots::image_names::is_of_snapshot;
use super::unavailable::Unavailable;
use crate::events::EventType;
use store::Sandbox;

/// Image name of the host's own root file system, which is in no store.
const HOST: &str = "host";

/// Maximum number of buffered progress steps of a pull.
const PROGRESS_MAX: usize = 16;

/// Progress of a pull.
pub type Pull = BoxStream<'static, Result<Progress>>;

impl Control {
    /// Lists all images by name; for a `viewer` without those of snapshots, which have owners.
    ///
    /// # Errors
    /// If the image store cannot be read.
    pub async fn images(&self, viewer: Option<&OwnerId>) -> Result<Vec<Image>> {
        let images = self.image_store()?.list().await.map_err(|error| fault("", error))?;
        Ok(if viewer.is_some() { images.into_iter().filter_map(shared).collect() } else { images })
    }

    /// Returns one image, by name or digest; for a `viewer` none of a snapshot, which has an owner.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not in the store, [`Error::InvalidImage`] for a bad name.
    pub async fn image(&self, name: &str, viewer: Option<&OwnerId>) -> Result<Detail> {
        let missing = || Error::NotFound(Resource::Image, name.to_owned());
        if viewer.is_some() && is_of_snapshot(name) {
            return Err(missing());
        }
        let mut detail = self.image_store()?.inspect(name).await.map_err(|error| fault(name, error))?;
        if viewer.is_some() {
            detail.image = shared(detail.image).ok_or_else(missing)?;
        }
        Ok(detail)
    }

    /// Pulls an image from its registry. The pull goes on when the stream is dropped, until
    /// another pull needs its place. The last item is [`Progress::Done`] or an error.
    ///
    /// # Errors
    /// [`Error::InvalidImage`] for a bad name. The stream also yields [`Error::Unavailable`] for a
    /// registry that does not answer, and [`Error::Full`].
    pub async fn pull_image(self: &Arc<Self>, name: &str, asker: Asker) -> Result<Pull> {
        let asked = self.image_store()?.pull_for(name, Some(asker)).await;
        let (mut pull, interest) = asked.map_err(|error| fault(name, error))?;
        let (control, name) = (Arc::clone(self), name.to_owned());
        self.publish(EventType::ImagePulling, None, json!({"image": name}));
        let (steps, progress) = mpsc::channel(PROGRESS_MAX);
        // The caller may have gone before the pull ends.
        self.tasks.spawn(async move {
            while let Some(step) = pull.next().await {
                let is_last = match &step {
                    Ok(Progress::Done(image)) => {
                        control.publish(EventType::ImagePulled, None, json!({"image": name, "digest": image.digest}));
                        true
                    }
                    Ok(Progress::Resolving | Progress::Downloading { .. } | Progress::Unpacking { .. }) => false,
                    Err(error) => {
                        let data = json!({"image": name, "error": error.to_string()});
                        control.publish(EventType::ImageFailed, None, data);
                        true
                    }
                };
                let step = step.map_err(|error| fault(&name, error));
                if is_last {
                    // The receiver may be gone.
                    let _ = steps.send(step).await;
                    break;
                }
                // A slow reader misses some steps and delays nothing.
                let _ = steps.try_send(step);
            }
        });
        // The pull gives way to others only once this stream is dropped.
        let progress = futures_util::stream::unfold((progress, interest), |(mut progress, interest)| async {
            Some((progress.recv().await?, (progress, interest)))
        });
        Ok(progress.boxed())
    }

    /// Imports the images of an archive.
    ///
    /// # Errors
    /// [`Error::InvalidImage`] for a bad name or archive, [`Error::TooLarge`], [`Error::Full`].
    pub async fn import_images(&self, name: Option<&str>, archive: Archive, asker: Asker) -> Result<Vec<Image>> {
        let imported = self.image_store()?.import_for(name, archive, Some(asker)).await;
        let images = imported.map_err(|error| {
            // A pull's `TooLarge` is about the image; here it is about the caller's archive.
            if let images::Error::TooLarge(text) = error {
                Error::TooLarge(text)
            } else {
                fault(name.unwrap_or_default(), error)
            }
        })?;
        for image in &images {
            let name = image.names.first().cloned().unwrap_or_default();
            self.publish(EventType::ImagePulled, None, json!({"image": name, "digest": image.digest}));
        }
        Ok(images)
    }

    /// Removes a name from its image, and the image with its last name. Ends a pull of that
    /// name.
    ///
    /// # Errors
    /// [`Error::Conflict`] while a box uses it, [`Error::NotFound`].
    pub async fn remove_image(&self, name: &str) -> Result<()> {
        self.image_store()?.remove(name).await.map_err(|error| fault(name, error))?;
        self.publish(EventType::ImageRemoved, None, json!({"image": name}));
        Ok(())
    }

    /// Removes images that no box uses: those without a name, or all of them.
    ///
    /// # Errors
    /// If the image store cannot be written.
    pub async fn prune_images(&self, all: bool) -> Result<Pruned> {
        let pruned = self.image_store()?.prune(all).await.map_err(|error| fault("", error))?;
        for digest in &pruned.images {
            self.publish(EventType::ImageRemoved, None, json!({"image": digest, "digest": digest}));
        }
        Ok(pruned)
    }

    pub(super) fn image_store(&self) -> Result<&Images> {
        self.registry.images().ok_or_else(|| Unavailable::NoImageStore.into())
    }

    /// Returns the refusal of a box with the image `host`, naming the providers that have the
    /// image.
    pub(super) fn with_image(&self, spec: &Spec, refused: Error) -> Error {
        let Error::Invalid(cause) = refused else { return refused };
        if spec.image != HOST || spec.entrypoint {
            return Error::Invalid(cause);
        }
        let entries = self.registry.entries().iter().filter(|entry| entry.provider.check(spec).is_ok());
        let providers = entries.map(|entry| entry.provider.name().to_owned()).collect();
        Error::InvalidImage(InvalidImage::Host { cause, providers })
    }

    /// Checks an image before a box is made from it: whether its name is valid, and whether its
    /// registry may be contacted.
    pub(super) async fn check_image(&self, provider: &dyn Provider, image: &str) -> Result<()> {
        let Some(images) = provider.images().filter(|_| image != HOST) else { return Ok(()) };
        match images.check_image(image).await {
            Err(providers::Error::Invalid(cause)) => Err(Error::InvalidImage(InvalidImage::Refused { cause })),
            // Other failures are reported when the box is made.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Publishes that a box waits for its image, if it does. The result must be passed to
    /// [`Self::image_came`]. A box on another worker waits there, and that worker publishes it.
    pub(super) async fn await_image(&self, provider: &dyn Provider, sandbox: &Sandbox) -> Option<AwaitedImage> {
        let images = provider.images().filter(|_| sandbox.image != HOST)?;
        if !images.is_awaited(&sandbox.image).await {
            return None;
        }
        let image = sandbox.image.clone();
        self.publish(EventType::ImagePulling, Some(&sandbox.id), json!({"image": image}));
        Some(AwaitedImage { sandbox: sandbox.id.clone(), image })
    }

    /// Publishes the outcome of an image that a box waited for.
    pub(super) async fn image_came(
        &self,
        provider: &dyn Provider,
        awaited: AwaitedImage,
        error: Option<&providers::Error>,
    ) {
        let AwaitedImage { sandbox, image } = awaited;
        let Some(images) = provider.images() else { return };
        // The box may have failed for another reason after the image arrived.
        match (images.digest(&image).await, error) {
            (Some(digest), _) => {
                let data = json!({"image": image, "digest": digest});
                self.publish(EventType::ImagePulled, Some(&sandbox), data);
            }
            (None, Some(error)) => {
                let data = json!({"image": image, "error": error.to_string()});
                self.publish(EventType::ImageFailed, Some(&sandbox), data);
            }
            // The image was removed meanwhile.
            (None, None) => {}
        }
    }
}

/// Returns an image with the names that are no snapshot's, if it has any.
fn shared(mut image: Image) -> Option<Image> {
    image.names.retain(|name| !is_of_snapshot(name));
    (!image.names.is_empty()).then_some(image)
}

/// An image that a box waits for.
#[derive(Debug)]
pub(super) struct AwaitedImage {
    sandbox: domain::SandboxId,
    image: String,
}

/// Converts a failure of the image store into the caller's error.
pub(super) fn fault(name: &str, error: images::Error) -> Error {
    use images::Error as E;
    match error {
        E::Invalid(cause) | E::TooLarge(cause) => Error::InvalidImage(InvalidImage::Refused { cause }),
        E::NotFound(_) => Error::NotFound(Resource::Image, name.to_owned()),
        E::Conflict(text) => Conflict::Refused(text).into(),
        E::Full(cause) => Full::ImageStore { cause }.into(),
        E::Unavailable(cause) => Unavailable::ImageStore { cause }.into(),
        E::Failed { action, .. } => Error::Images { action, source: Arc::new(error) },
    }
}
