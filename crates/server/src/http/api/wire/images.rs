//! Conversions of images to the API.

use domain::Timestamp;
use images::{Detail, Image, Progress, Pruned};

/// Converts an image to the API.
pub fn image(image: Image) -> api::Image {
    let used = image.used_at.and_then(|at| Timestamp::try_from(at).ok());
    api::Image {
        names: image.names,
        digest: image.digest,
        size_bytes: image.size_bytes,
        unpacked_bytes: image.unpacked_bytes,
        created_at: image.created,
        last_used_at: used.map(super::scalars::time),
        in_use: image.boxes as u64,
        platform: image.platform,
    }
}

/// Converts the details of an image to the API.
pub fn image_detail(detail: Detail) -> api::ImageDetail {
    let Detail { image: of_list, run, labels, config_digest, layers } = detail;
    let defaults = run.defaults;
    let layers = layers.into_iter().map(|layer| api::ImageLayer {
        digest: layer.digest,
        size_bytes: layer.size_bytes,
        media_type: layer.media_type,
    });
    api::ImageDetail {
        image: image(of_list),
        config_digest,
        env: api::StringMap(defaults.env),
        user: defaults.user,
        workdir: defaults.workdir,
        entrypoint: run.entrypoint,
        labels: api::StringMap(labels),
        layers: layers.collect(),
    }
}

/// Converts a step of a pull to the API.
pub fn pull_progress(step: Progress) -> api::PullProgress {
    match step {
        Progress::Resolving => api::PullProgress::Resolving,
        Progress::Downloading { bytes, bytes_total } => api::PullProgress::Downloading { bytes, bytes_total },
        Progress::Unpacking { bytes } => api::PullProgress::Unpacking { bytes },
        Progress::Done(done) => api::PullProgress::Done { image: image(done) },
    }
}

/// Converts the result of a prune to the API.
pub fn pruned_images(pruned: Pruned) -> api::PrunedImages {
    api::PrunedImages { removed: pruned.images, freed_bytes: pruned.freed_bytes }
}
