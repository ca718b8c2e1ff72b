//! Images as the roots of boxes.

use std::time::{Duration, Instant};

use domain::SandboxId;

use super::{HOST, Inner};
use crate::images::{ImageGuard, Images};
use crate::{Error, Phase, Result, Spec};

/// Image for one box.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) held: ImageGuard,
    /// True if its entry point is started.
    pub(super) entrypoint: bool,
    took: Duration,
}

impl Image {
    /// Returns the phase of a start that went into getting the image.
    pub(super) fn phase(&self) -> Phase {
        Phase { name: "image", took: self.took }
    }
}

impl Inner {
    /// Returns the image that `spec` asks for; `None` for `host`.
    pub(super) async fn take_image(&self, spec: &Spec) -> Result<Option<Image>> {
        if spec.image == HOST {
            return Ok(None);
        }
        let Some(images) = &self.images else { return Err(unknown(&spec.image)) };
        let begin = Instant::now();
        let held = images.take_for(&spec.image, spec.asker).await.map_err(Error::of_image)?;
        held.run().check(&spec.image, spec.entrypoint)?;
        Ok(Some(Image { held, entrypoint: spec.entrypoint, took: begin.elapsed() }))
    }
}

/// Checks the image of a spec without asking a registry.
pub(super) fn check(images: Option<&Images>, spec: &Spec) -> Result<()> {
    if spec.image == HOST {
        if spec.entrypoint {
            return Err(Error::Invalid(format!(
                "the image `{HOST}` has no entry point; leave `entrypoint` out or name another image"
            )));
        }
        return Ok(());
    }
    if images.is_none() { Err(unknown(&spec.image)) } else { Ok(()) }
}

fn unknown(image: &str) -> Error {
    Error::Invalid(format!("the provider native has only the image `{HOST}`, not `{image}`"))
}

/// Returns the hold on the image of a box that an earlier server made.
pub(super) fn held_again(images: Option<&Images>, id: &SandboxId, digest: &str) -> Option<ImageGuard> {
    let held = images.and_then(|images| images.hold(digest));
    if held.is_none() {
        tracing::warn!(%id, digest, "the image of a box is not in the store any more: what the box has not read yet is gone");
    }
    held
}
