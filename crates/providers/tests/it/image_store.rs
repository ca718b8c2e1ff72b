//! Image stores with images that the tests make.

use std::path::Path;

use fixtures::image::{Image, digest};
use images::rootfs::{Bounds, Compression, Layer, Trees};
use images::{Images, ImagesConfig, PullPolicy, Reserve};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Puts images into the folder of a store that is not open: an OCI layout, and the trees that the
/// store unpacks from it.
pub(crate) fn put(dir: &Path, images: &[(&str, Image)]) {
    let trees = {
        std::fs::create_dir_all(dir).unwrap();
        Trees::open(dir).unwrap()
    };
    let mut manifests = Vec::new();
    for (name, image) in images {
        image.write_oci(dir, name);
        let index: Value = serde_json::from_slice(&std::fs::read(dir.join("index.json")).unwrap()).unwrap();
        manifests.extend(index["manifests"].as_array().unwrap().clone());
        let packed = image.layers.iter().map(|layer| image.packing.pack(layer));
        let layers: Vec<Layer> = packed
            .zip(&image.layers)
            .map(|(blob, layer)| Layer {
                path: dir.join("blobs").join(digest(&blob).replace(':', "/")),
                compression: Compression::Gzip,
                diff_id: digest(layer),
            })
            .collect();
        let bounds = Bounds { bytes_max: 1 << 30, entries_max: Bounds::ENTRIES_MAX, reserve: Reserve::NONE };
        trees.unpack(&image.digest(), &layers, &bounds, &CancellationToken::new(), &|_| {}).unwrap();
    }
    let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
    std::fs::write(dir.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
}

/// Opens the image store in a data folder, as a server does.
pub(crate) fn open_images(data_dir: &Path) -> Images {
    let config = ImagesConfig { pull: PullPolicy::Never, ..ImagesConfig::new(data_dir.join("images")) };
    Images::open(config).unwrap()
}
