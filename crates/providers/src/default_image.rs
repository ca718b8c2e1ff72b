//! Image of a spawn that names none.

use crate::{firecracker, local, native, proot};

/// Returns the image of a spawn that names none, by the name of a provider that has the same one
/// on every machine; `None` for others.
#[must_use]
pub fn default_image(provider: &str) -> Option<&'static str> {
    match provider {
        native::NAME | proot::NAME => Some(local::image::HOST),
        firecracker::NAME => Some(firecracker::DEFAULT_IMAGE),
        _ => None,
    }
}
