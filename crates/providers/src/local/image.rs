//! Images as the roots of boxes.

use std::time::{Duration, Instant};

use domain::SandboxId;
use images::{ImageGuard, Images};

use crate::{Error, Result, Spec};

/// Name of the image that shows the host's own programs.
pub(crate) const HOST: &str = "host";

/// Image for one box.
#[derive(Debug)]
pub struct Image {
    pub(crate) held: ImageGuard,
    /// True if its entry point is started.
    pub(crate) entrypoint: bool,
    /// Time that getting it took.
    pub(crate) took: Duration,
}

/// Checks the image of a spec without asking a registry. `default` is the image of a spawn that names
/// none.
pub(crate) fn check(provider: &str, default: &str, images: Option<&Images>, spec: &Spec) -> Result<()> {
    if spec.image == HOST {
        if default != HOST {
            return Err(Error::Invalid(format!(
                "the provider {provider} has no image `{HOST}`; native and proot have it. Use an image such as \
                 `{default}`"
            )));
        }
        if spec.entrypoint {
            return Err(Error::Invalid(format!(
                "the image `{HOST}` has no entry point; leave `entrypoint` out or name another image"
            )));
        }
        return Ok(());
    }
    if images.is_none() { Err(unknown(provider, &spec.image)) } else { Ok(()) }
}

/// Returns the image that `spec` asks for; `None` for `host`.
pub(crate) async fn take(provider: &str, images: Option<&Images>, spec: &Spec) -> Result<Option<Image>> {
    if spec.image == HOST {
        return Ok(None);
    }
    let Some(images) = images else { return Err(unknown(provider, &spec.image)) };
    let begin = Instant::now();
    let held = images.take_for(&spec.image, spec.asker).await?;
    held.run().check(&spec.image, spec.entrypoint)?;
    Ok(Some(Image { held, entrypoint: spec.entrypoint, took: begin.elapsed() }))
}

fn unknown(provider: &str, image: &str) -> Error {
    Error::Invalid(format!("the provider {provider} has only the image `{HOST}`, not `{image}`"))
}

/// Returns the hold on the image of a box that an earlier server made.
pub(crate) fn held_again(images: Option<&Images>, id: &SandboxId, digest: &str) -> Option<ImageGuard> {
    let held = images.and_then(|images| images.hold(digest));
    if held.is_none() {
        tracing::warn!(%id, digest, "the image of a box is no longer in the store: files that the box has not read yet \
            are lost");
    }
    held
}
