//! Images: what the store has, and how it gets there.

use std::sync::Arc;

use domain::Asker;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use providers::images::{Detail, Image, Images, Progress, Pruned};
use providers::{ByteStream, Provider, Spec};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Control, Error, Resource, Result};
use crate::events::EventType;
use crate::store::Sandbox;

/// The image that is the host itself, and in no store.
const HOST: &str = "host";

/// How many steps of a pull wait to be told.
const PROGRESS_MAX: usize = 16;

/// How a pull goes.
pub type Pull = BoxStream<'static, Result<Progress>>;

impl Control {
    /// Every image, by name.
    ///
    /// # Errors
    /// If the image store cannot be read.
    pub async fn images(&self) -> Result<Vec<Image>> {
        self.image_store()?.list().await.map_err(|error| fault("", error))
    }

    /// One image, by name or digest.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not here, [`Error::Invalid`] for what names none.
    pub async fn image(&self, name: &str) -> Result<Detail> {
        self.image_store()?.inspect(name).await.map_err(|error| fault(name, error))
    }

    /// Fetches an image from its registry. It goes on when the stream is dropped, until
    /// another needs its place; the last item is [`Progress::Done`] or an error.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what names no image. Those of the stream: also
    /// [`Error::Unavailable`] for a registry that does not answer, and
    /// [`Error::Full`].
    pub async fn pull_image(self: &Arc<Self>, name: &str, asker: Asker) -> Result<Pull> {
        let asked = self.image_store()?.pull_for(name, Some(asker)).await;
        let (mut pull, interest) = asked.map_err(|error| fault(name, error))?;
        let (control, name) = (Arc::clone(self), name.to_owned());
        self.publish(EventType::ImagePulling, None, json!({"image": name}));
        let (steps, told) = mpsc::channel(PROGRESS_MAX);
        // Whoever asked may have gone by the time it is here.
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
                    // Nobody waits for it any more.
                    let _ = steps.send(step).await;
                    break;
                }
                // Who reads slowly misses some of the steps, and holds up nothing.
                let _ = steps.try_send(step);
            }
        });
        // The pull gives way to others only when nothing reads this.
        let told = futures_util::stream::unfold((told, interest), |(mut told, interest)| async {
            Some((told.recv().await?, (told, interest)))
        });
        Ok(told.boxed())
    }

    /// Takes in the images of an archive.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name or archive, [`Error::TooLarge`], [`Error::Full`].
    pub async fn import_images(&self, name: Option<&str>, archive: ByteStream, asker: Asker) -> Result<Vec<Image>> {
        let imported = self.image_store()?.import_for(name, archive, Some(asker)).await;
        let images = imported.map_err(|error| {
            // Of a pull it is the image that is too large, and not what the caller sent.
            if let providers::Error::TooLarge(text) = error {
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

    /// Takes a name from its image, and removes the image with its last name. A pull of
    /// that name ends.
    ///
    /// # Errors
    /// [`Error::Conflict`] while a box uses it, [`Error::NotFound`].
    pub async fn remove_image(&self, name: &str) -> Result<()> {
        self.image_store()?.remove(name).await.map_err(|error| fault(name, error))?;
        self.publish(EventType::ImageRemoved, None, json!({"image": name}));
        Ok(())
    }

    /// Removes images that no box uses: those without a name, or all.
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

    fn image_store(&self) -> Result<&Images> {
        let missing = || Error::Unavailable("this server has no image store".to_owned());
        self.registry.images().ok_or_else(missing)
    }

    /// The refusal of a box of the image `host`, with those who have that image.
    pub(super) fn who_has(&self, spec: &Spec, refused: Error) -> Error {
        let Error::Invalid(text) = refused else { return refused };
        if spec.image != HOST || spec.entrypoint {
            return Error::Invalid(text);
        }
        let entries = self.registry.entries().iter().filter(|entry| entry.provider.check(spec).is_ok());
        let having: Vec<_> = entries.map(|entry| format!("`{}`", entry.provider.name())).collect();
        Error::Invalid(match having.as_slice() {
            [] => format!("{text}; no provider of this server has it"),
            _ => format!("{text}; of this server's providers, {} can make it", having.join(", ")),
        })
    }

    /// What can be said against an image before anything is made of it: that this is
    /// no name, or that nobody may be asked for it.
    pub(super) async fn check_image(&self, provider: &dyn Provider, image: &str) -> Result<()> {
        let Some(images) = provider.images().filter(|_| image != HOST) else { return Ok(()) };
        match images.check_image(image).await {
            Err(error @ providers::Error::Invalid(_)) => Err(fault(image, error)),
            // Whoever makes the box says what is wrong otherwise.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Tells that a box waits for its image, if it does; what is given back has to
    /// be told how that went. A box elsewhere waits there, and it is told there.
    pub(super) async fn await_image(&self, provider: &dyn Provider, sandbox: &Sandbox) -> Option<AwaitedImage> {
        let images = provider.images().filter(|_| sandbox.image != HOST)?;
        if !images.is_awaited(&sandbox.image).await {
            return None;
        }
        let image = sandbox.image.clone();
        self.publish(EventType::ImagePulling, Some(&sandbox.id), json!({"image": image}));
        Some(AwaitedImage { sandbox: sandbox.id.clone(), image })
    }

    /// Tells how it went with an image that a box waited for.
    pub(super) async fn image_came(
        &self,
        provider: &dyn Provider,
        awaited: AwaitedImage,
        error: Option<&providers::Error>,
    ) {
        let AwaitedImage { sandbox, image } = awaited;
        let Some(images) = provider.images() else { return };
        // A box can fail for other reasons, with its image here.
        match (images.digest(&image).await, error) {
            (Some(digest), _) => {
                let data = json!({"image": image, "digest": digest});
                self.publish(EventType::ImagePulled, Some(&sandbox), data);
            }
            (None, Some(error)) => {
                let data = json!({"image": image, "error": error.to_string()});
                self.publish(EventType::ImageFailed, Some(&sandbox), data);
            }
            // Removed again meanwhile.
            (None, None) => {}
        }
    }
}

/// An image that a box waits for.
#[derive(Debug)]
pub(super) struct AwaitedImage {
    sandbox: domain::SandboxId,
    image: String,
}

/// What a failure of the image store means to the caller.
fn fault(name: &str, error: providers::Error) -> Error {
    use providers::Error as P;
    match error {
        P::Invalid(text) | P::TooLarge(text) | P::NotSupported(text) => Error::Invalid(text),
        P::NotFound(_) => Error::NotFound(Resource::Image, name.to_owned()),
        P::Conflict(text) => Error::Conflict(text),
        P::Gone => Error::Conflict("the image was removed meanwhile; ask again".to_owned()),
        P::Full(text) => Error::Full(text),
        P::NoSpace => Error::Full("the disk with the images of this server is full; make room on it".to_owned()),
        P::Exhausted(text) => Error::LimitReached(text),
        P::Unavailable(text) | P::NoImage(text) => Error::Unavailable(text),
        P::NotAsked(error) => fault(name, *error),
        P::Failed { action, .. } => Error::Images { action, source: Arc::new(error) },
    }
}
