//! Images that an Engine cannot or must not run.

use fixtures::image::{Entry, Image, digest};
use fixtures::registry::Registry;
use providers::{Error, Provider, Spec};
use serde_json::json;

use crate::docker::harness::{TestProvider, new_id, spec};

/// Starts a box of this image, which must fail, and returns the error's text.
async fn refusal(provider: &TestProvider, image: &str) -> String {
    match provider.docker.start(&new_id(), &Spec { image: image.to_owned(), ..spec() }).await {
        Err(Error::Invalid(text)) => text,
        other => panic!("{image}: {other:?}"),
    }
}

#[tokio::test]
async fn an_image_for_another_machine_is_refused_and_says_for_which() {
    let Some(registry) = Registry::start() else { return };
    let Some(provider) = TestProvider::new().await else { return };
    let mut other = Image::new(&[vec![Entry::file("hello", "of another machine")]]);
    other.architecture = "s390x".to_owned();
    let alone = registry.push(&other, "other", "1");
    let text = refusal(&provider, &alone).await;
    assert!(text.contains("s390x") && text.contains(&alone), "{text}");
    let manifest = other.blobs().pop().unwrap();
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest(&manifest), "size": manifest.len(),
        "platform": {"os": "linux", "architecture": "s390x"},
    }]});
    let index = serde_json::to_vec(&index).unwrap();
    registry.push_manifest("other", "2", "application/vnd.oci.image.index.v1+json", &index);
    let text = refusal(&provider, &alone.replace("other:1", "other:2")).await;
    assert!(text.contains("linux/") && text.contains("other:2"), "{text}");
    assert_eq!(provider.docker.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_layer_that_is_not_what_was_announced_is_refused() {
    let Some(registry) = Registry::start() else { return };
    let Some(provider) = TestProvider::new().await else { return };
    let image = Image::new(&[vec![Entry::file("hello", "right")]]);
    let layer = image.blobs().remove(0);
    let flipped: Vec<u8> = layer.iter().enumerate().map(|(at, byte)| if at == 20 { byte ^ 1 } else { *byte }).collect();
    let cut = layer[..layer.len() / 2].to_vec();
    for (tag, wrong) in [("flipped", flipped), ("cut", cut)] {
        let name = registry.push(&image, "damaged", tag);
        std::fs::write(registry.blob_file(&digest(&layer)), wrong).unwrap();
        let text = refusal(&provider, &name).await;
        assert!(text.contains("a different layer") && text.contains(&name), "{text}");
        std::fs::write(registry.blob_file(&digest(&layer)), &layer).unwrap();
    }
}

#[tokio::test]
async fn an_image_of_200_layers_runs_or_is_refused_for_its_layers() {
    let Some(registry) = Registry::start() else { return };
    let Some(provider) = TestProvider::new().await else { return };
    let layers: Vec<_> = (0..200).map(|number| vec![Entry::file(format!("f{number}"), "x")]).collect();
    let name = registry.push(&Image::new(&layers), "many", "1");
    let id = new_id();
    match provider.docker.start(&id, &Spec { image: name.clone(), ..spec() }).await {
        // Some storage drivers can.
        Ok(_) => provider.docker.stop(&id).await.unwrap(),
        Err(Error::Invalid(text)) => assert!(text.contains("layers") && text.contains(&name), "{text}"),
        Err(other) => panic!("{other:?}"),
    }
}
