//! Registries that break off, stall, lie and send without end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fixtures::image::digest;
use images::RegistryConfig;
use serde_json::{Value, json};

use super::fake_registry::{FakeRegistry, Say};
use super::*;

/// The longest time that a failed pull may take, even on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

fn is_layer(asked: &super::fake_registry::Asked, layer: &str) -> bool {
    asked.path.ends_with(layer)
}

#[tokio::test]
async fn a_layer_that_broke_off_is_gone_on_with_where_it_broke_off() {
    let image = large(3_000_000, 1);
    let layer = digest(&image.blobs()[0]);
    let size = image.blobs()[0].len();
    let fake = {
        let layer = layer.clone();
        FakeRegistry::telling(move |asked| {
            (is_layer(asked, &layer) && asked.from() < size / 2).then_some(Say::CutAfter(900_000))
        })
    };
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    store.open().take(&name).await.unwrap();
    let begins: Vec<_> =
        fake.asked().iter().filter(|asked| is_layer(asked, &layer)).map(|asked| asked.from()).collect();
    assert_eq!(begins, [0, 900_000, 1_800_000], "each begins where the one before ended");
}

#[tokio::test]
async fn a_registry_that_cannot_go_on_sends_the_whole_layer_again() {
    let image = large(400_000, 2);
    let layer = image.blobs().remove(0);
    let (hash, first) = (digest(&layer), AtomicUsize::new(0));
    let fake = FakeRegistry::telling(move |asked| {
        if !is_layer(asked, &hash) {
            return None;
        }
        match first.fetch_add(1, Ordering::SeqCst) {
            0 => Some(Say::CutAfter(100_000)),
            _ => Some(Say::Answer(200, Vec::new(), layer.clone())),
        }
    });
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    store.open().take(&name).await.unwrap();
    assert!(fake.asked().iter().any(|asked| asked.from() == 100_000));
}

#[tokio::test]
async fn a_part_that_is_not_the_one_asked_for_is_refused() {
    let image = large(400_000, 3);
    let layer = image.blobs().remove(0);
    let hash = digest(&layer);
    let fake = FakeRegistry::telling(move |asked| match (is_layer(asked, &hash), asked.from()) {
        (true, 0) => Some(Say::CutAfter(100_000)),
        (true, _) => Some(Say::Answer(206, vec!["content-range: bytes 7-9/10".to_owned()], vec![1, 2, 3])),
        (false, _) => None,
    });
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    assert!(invalid(images.take(&name).await).contains("a different range"));
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn a_layer_that_always_breaks_off_is_given_up() {
    let image = large(400_000, 4);
    let layer = digest(&image.blobs()[0]);
    let hash = layer.clone();
    let fake = FakeRegistry::telling(move |asked| is_layer(asked, &hash).then_some(Say::CutAfter(1000)));
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let began = Instant::now();
    assert!(unavailable(images.take(&name).await).contains("cut off"));
    assert!(began.elapsed() < BOUND);
    let attempts = fake.asked().iter().filter(|asked| is_layer(asked, &layer)).count();
    assert!((2..=8).contains(&attempts), "{attempts}");
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn a_fault_that_passes_is_tried_again() {
    for status in [500, 502, 503, 429, 408] {
        let times = AtomicUsize::new(0);
        let fake = FakeRegistry::telling(move |_| {
            // The first two requests fail, and then every fourth.
            let time = times.fetch_add(1, Ordering::SeqCst);
            (time < 2 || time % 4 == 3).then(|| Say::Answer(status, Vec::new(), b"{}".to_vec()))
        });
        let name = fake.put(&small("patience"), "app", "1");
        let store = TestStore::new();
        let held = store.open().take(&name).await.unwrap();
        assert_eq!(read(held.root(), "hello"), "patience", "{status}");
    }
}

#[tokio::test]
async fn a_registry_that_stays_broken_is_unavailable_after_a_few_attempts() {
    let fake = FakeRegistry::telling(|_| {
        Some(Say::Answer(503, Vec::new(), b"our database is down: password hunter2".to_vec()))
    });
    let store = TestStore::new();
    let images = store.open();
    let text = unavailable(images.take(&format!("{}/app:1", fake.address())).await);
    assert!(text.contains("503") && !text.contains("hunter2"), "{text}");
    assert!((2..=8).contains(&fake.asked().len()), "{}", fake.asked().len());
}

#[tokio::test]
async fn a_silent_registry_is_waited_for_no_longer_than_allowed() {
    let image = large(400_000, 5);
    let layer = digest(&image.blobs()[0]);
    for what in ["/manifests/", &layer] {
        let what = what.to_owned();
        let fake = FakeRegistry::telling(move |asked| asked.path.contains(&what).then_some(Say::Nothing));
        let name = fake.put(&image, "app", "1");
        let store = TestStore::new();
        let images = store.open_with(|config| config.stall_timeout = Duration::from_millis(300));
        let began = Instant::now();
        let text = unavailable(images.take(&name).await);
        assert!(text.contains("does not answer in time"), "{text}");
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
        nothing_is_trusted(&store, &images).await;
    }
}

#[tokio::test]
async fn layers_that_are_not_what_was_announced_are_refused() {
    let image = large(300_000, 6);
    let layer = image.blobs().remove(0);
    let mut flipped = layer.clone();
    flipped[1000] ^= 1;
    let longer = [layer.as_slice(), b"and more"].concat();
    let shorter = layer[..layer.len() - 1].to_vec();
    for (body, why) in [
        (flipped, "a different layer"),
        (longer, "more of a layer"),
        (shorter, "less of a layer"),
        (Vec::new(), "less of a layer"),
    ] {
        let hash = digest(&layer);
        let wrong = body.clone();
        let fake = FakeRegistry::telling(move |asked| {
            is_layer(asked, &hash).then(|| Say::Answer(200, Vec::new(), wrong.clone()))
        });
        let name = fake.put(&image, "app", "1");
        let store = TestStore::new();
        let images = store.open();
        let text = invalid(images.take(&name).await);
        assert!(text.contains(why) && text.contains(fake.address()) | text.contains("registry"), "{text}");
        nothing_is_trusted(&store, &images).await;
        let blob = store.dir().join("blobs/sha256").join(digest(&layer).trim_start_matches("sha256:"));
        assert!(!blob.exists());
    }
}

#[tokio::test]
async fn a_manifest_that_is_not_the_one_of_the_digest_is_refused() {
    let fake = FakeRegistry::good();
    let image = small("right");
    let asked_for = format!("sha256:{}", "1".repeat(64));
    fake.put(&image, "app", &asked_for);
    let store = TestStore::new();
    let images = store.open();
    let text = invalid(images.take(&format!("{}/app@{asked_for}", fake.address())).await);
    assert!(text.contains("a different manifest"), "{text}");
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let fake = FakeRegistry::telling(|_| Some(Say::Endless));
    let store = TestStore::new();
    let images = store.open();
    let text = invalid(images.take(&format!("{}/app:1", fake.address())).await);
    assert!(text.contains("more than 4194304 bytes"), "{text}");
}

#[tokio::test]
async fn manifests_that_make_no_sense_are_refused() {
    let manifest = |change: &dyn Fn(&mut Value)| {
        let mut manifest: Value = serde_json::from_slice(&small("x").blobs().pop().unwrap()).unwrap();
        change(&mut manifest);
        serde_json::to_vec(&manifest).unwrap()
    };
    let index = |digest: &str| {
        let host = json!({"os": "linux", "architecture": small("x").architecture});
        serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": [
            {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": 2, "platform": host},
        ]}))
        .unwrap()
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"<html>login</html>".to_vec(), "JSON"),
        (b"".to_vec(), "JSON"),
        (b"[1, 2]".to_vec(), "JSON"),
        (b"{}".to_vec(), "neither layers nor manifests"),
        (b"{\"schemaVersion\": 1, \"fsLayers\": []}".to_vec(), "schema 1"),
        (manifest(&|it| it["manifests"] = json!([])), "both an index and an image"),
        (manifest(&|it| it["layers"][0]["digest"] = json!("sha256:../../../../etc/passwd")), "wrong kind"),
        (
            manifest(&|it| {
                it["layers"][0]["mediaType"] = json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")
            }),
            "may not be distributed",
        ),
        (
            manifest(&|it| it["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json")),
            "not a file system image",
        ),
        (manifest(&|it| it["config"]["size"] = json!(1 << 30)), "configuration"),
        (manifest(&|it| it["layers"] = json!([])), "lists 1 layers"),
        (index("sha256:../../../../etc/passwd"), "wrong kind"),
        (index(&format!("sha512:{}", "a".repeat(128))), "not sha256"),
    ];
    for (document, why) in cases {
        let fake = FakeRegistry::good();
        fake.put(&small("x"), "app", "good");
        fake.put_manifest("app", "1", "application/vnd.oci.image.manifest.v1+json", document.clone());
        let store = TestStore::new();
        let images = store.open();
        let text = invalid(images.take(&format!("{}/app:1", fake.address())).await);
        assert!(text.contains(why), "{} gives {text}", String::from_utf8_lossy(&document));
        nothing_is_trusted(&store, &images).await;
    }
}

#[tokio::test]
async fn an_image_that_is_too_large_is_refused_before_it_comes_and_says_what_sets_the_bound() {
    let fake = FakeRegistry::good();
    let name = fake.put(&large(300_000, 9), "app", "1");
    let store = TestStore::new();
    let images = store.open_with(|config| config.image_bytes_max = 200_000);
    let Err(Error::TooLarge(text)) = images.take(&name).await else { panic!() };
    assert!(
        text.contains("more than the limit for an image") && text.contains("raise `images.max_image_mb`"),
        "{text}"
    );
    assert_eq!(fake.blobs_asked(), 0);
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn a_registry_that_lost_a_layer_is_blamed_and_not_the_name() {
    let image = large(30_000, 10);
    let layer = digest(&image.blobs()[0]);
    let fake = {
        let layer = layer.clone();
        FakeRegistry::telling(move |asked| {
            is_layer(asked, &layer).then(|| Say::Answer(404, Vec::new(), b"{}".to_vec()))
        })
    };
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let text = invalid(images.take(&name).await);
    assert!(text.contains(&format!("`{name}` lacks its layer")) && text.contains(&layer), "{text}");
    assert!(text.contains("push the image again") && !text.contains("check the name"), "{text}");
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn a_registry_that_drips_is_given_up() {
    let image = large(400_000, 11);
    let layer = digest(&image.blobs()[0]);
    let hash = layer.clone();
    let fake =
        FakeRegistry::telling(move |asked| is_layer(asked, &hash).then_some(Say::Drip(Duration::from_millis(50))));
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open_with(|config| config.stall_timeout = Duration::from_secs(2));
    // At this rate it would take more than five hours.
    let text = unavailable(tokio::time::timeout(2 * BOUND, images.take(&name)).await.unwrap());
    assert!(text.contains("sends data too slowly") && text.contains(fake.address()), "{text}");
    let attempts = fake.asked().iter().filter(|asked| is_layer(asked, &layer)).count();
    assert!((2..=8).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn redirects_have_an_end_and_lead_to_registries_only() {
    for (location, why) in [
        ("/v2/app/manifests/1", "more than 5 times"),
        ("file:///etc/passwd", "an insecure address"),
        ("ftp://127.0.0.1/x", "an insecure address"),
        ("", "more than 5 times"),
    ] {
        let fake =
            FakeRegistry::telling(move |_| Some(Say::Answer(307, vec![format!("location: {location}")], Vec::new())));
        let store = TestStore::new();
        let text = invalid(store.open().take(&format!("{}/app:1", fake.address())).await);
        assert!(text.contains(why), "{location}: {text}");
        assert!(fake.asked().len() <= 6, "{}", fake.asked().len());
    }
}

#[tokio::test]
async fn what_an_earlier_attempt_left_is_checked_and_not_trusted() {
    let fake = FakeRegistry::good();
    let image = large(300_000, 7);
    let name = fake.put(&image, "app", "1");
    let layer = image.blobs().remove(0);
    for garbage in [vec![0; 1000], vec![0; layer.len()], vec![0; layer.len() + 1000]] {
        let store = TestStore::new();
        let images = store.open();
        let partial = store.dir().join("ingest").join(digest(&layer).trim_start_matches("sha256:"));
        std::fs::write(partial, &garbage).unwrap();
        images.take(&name).await.unwrap();
    }
}

#[tokio::test]
async fn a_pull_that_has_no_room_is_refused_before_it_begins() {
    let fake = FakeRegistry::good();
    let name = fake.put(&large(300_000, 8), "app", "1");
    let store = TestStore::new();
    let images = store.open_with(|config| config.reserve.bytes = 1 << 60);
    let Err(Error::Full(text)) = images.take(&name).await else { panic!() };
    assert!(text.contains("too full") && text.contains("tidebox image prune"), "{text}");
    assert_eq!(fake.blobs_asked(), 0);
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn a_registry_without_tls_is_not_spoken_to_unless_it_is_said() {
    // A name of this machine that does not look like loopback.
    let fake = FakeRegistry::good();
    let name = fake.put(&small("x"), "app", "1");
    let port = fake.address().rsplit_once(':').unwrap().1.to_owned();
    let elsewhere = format!("0.0.0.0:{port}");
    let name = name.replace(fake.address(), &elsewhere);
    let store = TestStore::new();
    let images = store.open_with(|config| config.stall_timeout = Duration::from_secs(2));
    unavailable(images.take(&name).await);
    drop(images);
    let images = store.open_with(|config| {
        config.registries.insert(elsewhere, RegistryConfig { plain_http: true, ..RegistryConfig::default() });
    });
    images.take(&name).await.unwrap();
}
