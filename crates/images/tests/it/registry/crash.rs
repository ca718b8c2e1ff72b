//! Stores of a server that was killed, and damaged stores: they open, and use nothing that is
//! incomplete.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use fixtures::image::digest;

use super::fake_registry::{FakeRegistry, Gate, Say};
use super::login::again;
use super::*;

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn take_until_killed() {
    let Some(folder) = std::env::var_os("STORE_OF_A_TEST") else { return };
    let images = Images::open(ImagesConfig::new(PathBuf::from(folder).join("images"))).unwrap();
    let taken = images.take(&std::env::var("IMAGE_OF_A_TEST").unwrap()).await;
    println!("TAKEN {:?}", taken.map(|held| held.digest().to_owned()).map_err(|error| error.to_string()));
}

#[tokio::test]
async fn a_pull_that_was_killed_is_gone_on_with() {
    let gate = Arc::new(Gate::default());
    let image = large(4_000_000, 1);
    let layer = digest(&image.blobs()[0]);
    let (stall, hash) = (Arc::clone(&gate), layer.clone());
    let fake = FakeRegistry::telling(move |asked| {
        (asked.path.ends_with(&hash) && asked.from() == 0).then(|| Say::StallAfter(3_000_000, Arc::clone(&stall)))
    });
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    let mut child = again("registry::crash::take_until_killed")
        .env("STORE_OF_A_TEST", store.folder.path())
        .env("IMAGE_OF_A_TEST", &name)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let partial = store.dir().join("ingest").join(layer.trim_start_matches("sha256:"));
    let waited = tokio::time::timeout(Duration::from_secs(120), async {
        while std::fs::metadata(&partial).map_or(0, |partial| partial.len()) < 1_000_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let waited = waited.await;
    child.kill().unwrap();
    child.wait().unwrap();
    gate.open();
    waited.unwrap();
    let images = store.open();
    nothing_is_trusted(&store, &images).await;
    let held = images.take(&name).await.unwrap();
    assert_eq!(std::fs::metadata(held.root().join("noise")).unwrap().len(), 4_000_000);
    let from = fake.asked().iter().filter(|asked| asked.path.ends_with(&layer)).map(|asked| asked.from()).max();
    assert!(from >= Some(1_000_000), "what was here is not downloaded again: {from:?}");
    let configuration = digest(&image.configuration());
    let times = fake.asked().iter().filter(|asked| asked.path.ends_with(&configuration)).count();
    assert_eq!(times, 1, "nor is what was whole");
}

#[tokio::test]
async fn a_store_whose_index_is_broken_opens_and_is_filled_again() {
    let fake = FakeRegistry::good();
    let image = small("x");
    let name = fake.put(&image, "app", "1");
    for broken in ["", "{", "[]", "{\"schemaVersion\": 2, \"manifests\": [{\"digest\": \"../../etc\"}]}"] {
        let store = TestStore::new();
        pull(&store.open(), &name).await.unwrap();
        std::fs::write(store.dir().join("index.json"), broken).unwrap();
        let images = store.open();
        assert!(images.list().await.unwrap().is_empty(), "{broken}");
        assert!(store.dir().join("index.json.broken").exists(), "the broken index is kept");
        images.take(&name).await.unwrap();
    }
}

#[tokio::test]
async fn a_broken_index_takes_nothing_from_boxes_that_run() {
    let fake = FakeRegistry::good();
    let name = fake.put(&small("still here"), "app", "1");
    let store = TestStore::new();
    let digest = store.open().take(&name).await.unwrap().digest().to_owned();
    std::fs::write(store.dir().join("index.json"), "{").unwrap();
    let images = store.open();
    let held = images.hold(&digest).unwrap();
    images.prune(true).await.unwrap();
    assert_eq!(read(held.root(), "hello"), "still here");
    drop(held);
    images.prune(true).await.unwrap();
    assert!(images.hold(&digest).is_none(), "and when its box is gone, it goes");
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn what_a_crash_left_between_two_steps_is_removed_or_made_whole() {
    let fake = FakeRegistry::good();
    let image = small("x");
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    pull(&store.open(), &name).await.unwrap();
    // Unpacked, but not named yet.
    let index = std::fs::read(store.dir().join("index.json")).unwrap();
    std::fs::write(store.dir().join("index.json"), r#"{"schemaVersion": 2, "manifests": []}"#).unwrap();
    std::fs::write(store.dir().join("index.new"), "{").unwrap();
    std::fs::write(store.dir().join("ingest/new-7"), "half a manifest").unwrap();
    let images = store.open();
    assert!(images.list().await.unwrap().is_empty());
    assert!(!store.dir().join("ingest/new-7").exists());
    images.prune(false).await.unwrap();
    nothing_is_trusted(&store, &images).await;
    pull(&images, &name).await.unwrap();
    drop(images);
    // Named, but the tree is missing; then a blob is missing too.
    std::fs::write(store.dir().join("index.json"), index).unwrap();
    let tree = store.dir().join("trees").join(image.digest().trim_start_matches("sha256:"));
    std::fs::rename(tree, store.folder.path().join("away")).unwrap();
    let images = store.open();
    assert_eq!(read(images.take(&name).await.unwrap().root(), "hello"), "x");
    drop(images);
    let layer = digest(&image.blobs()[0]);
    let configuration = digest(&image.configuration());
    for blob in [&layer, &configuration, &image.digest()] {
        std::fs::remove_file(store.dir().join("blobs/sha256").join(blob.trim_start_matches("sha256:"))).unwrap();
        let images = store.open();
        images.list().await.unwrap();
        pull(&images, &name).await.unwrap();
        assert_eq!(images.list().await.unwrap()[0].names, std::slice::from_ref(&name));
    }
}
