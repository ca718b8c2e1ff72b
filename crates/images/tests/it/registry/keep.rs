//! Retention: images and blobs that are kept, and those that are removed.

use std::sync::Arc;

use fixtures::image::digest;

use super::fake_registry::{FakeRegistry, Gate, Say};
use super::*;

/// Returns the number of blobs in the store.
fn blobs(store: &TestStore) -> usize {
    std::fs::read_dir(store.dir().join("blobs/sha256")).unwrap().count()
}

fn trees(store: &TestStore) -> usize {
    std::fs::read_dir(store.dir().join("trees")).unwrap().count()
}

#[tokio::test]
async fn an_image_goes_with_its_last_name() {
    let fake = FakeRegistry::good();
    let image = small("x");
    let names = ["a", "b"].map(|tag| fake.put(&image, "app", tag));
    let store = TestStore::new();
    let images = store.open();
    for name in &names {
        pull(&images, name).await.unwrap();
    }
    images.remove(&names[0]).await.unwrap();
    assert_eq!(images.list().await.unwrap()[0].names, [names[1].clone()]);
    assert!(matches!(images.remove(&names[0]).await, Err(Error::NotFound(_))));
    assert!(matches!(images.inspect(&names[0]).await, Err(Error::NotFound(_))));
    images.remove(&names[1]).await.unwrap();
    assert!(images.list().await.unwrap().is_empty());
    assert_eq!((blobs(&store), trees(&store)), (0, 0));
    assert!(images.hold(&image.digest()).is_none());
}

#[tokio::test]
async fn an_image_that_boxes_hold_cannot_be_removed() {
    let fake = FakeRegistry::good();
    let name = fake.put(&small("held"), "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let first = images.take(&name).await.unwrap();
    let second = images.hold(first.digest()).unwrap();
    let digest = first.digest().to_owned();
    for what in [&name, &digest] {
        let Err(Error::Conflict(text)) = images.remove(what).await else { panic!() };
        assert!(text.contains("in use by 2 sandboxes or snapshots"), "{text}");
    }
    assert!(images.prune(true).await.unwrap().images.is_empty());
    assert_eq!(read(first.root(), "hello"), "held");
    drop(first);
    let Err(Error::Conflict(text)) = images.remove(&name).await else { panic!() };
    assert!(text.contains("in use by 1 sandbox or snapshot;"), "{text}");
    drop(second);
    images.remove(&digest).await.unwrap();
    assert!(images.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn prune_takes_what_has_no_name_and_with_all_what_nobody_holds() {
    let fake = FakeRegistry::good();
    let (old, new, other) = (small("old"), small("new"), small("other"));
    let name = fake.put(&old, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    pull(&images, &name).await.unwrap();
    fake.put(&new, "app", "1");
    pull(&images, &name).await.unwrap();
    let other_name = fake.put(&other, "other", "1");
    let held = images.take(&other_name).await.unwrap();
    let pruned = images.prune(false).await.unwrap();
    assert_eq!(pruned.images, [old.digest()]);
    assert!(pruned.freed_bytes > 0);
    assert_eq!(images.prune(false).await.unwrap(), Default::default(), "there is no more to do");
    assert_eq!(images.prune(true).await.unwrap().images, [new.digest()]);
    assert_eq!(read(held.root(), "hello"), "other", "what a box holds stays");
    assert_eq!(blobs(&store), 3, "and so do its blobs");
    drop(held);
    assert_eq!(images.prune(true).await.unwrap().images, [other.digest()]);
    assert_eq!((blobs(&store), trees(&store)), (0, 0));
}

#[tokio::test]
async fn an_image_that_lost_its_name_stays_while_a_box_holds_it_also_after_a_restart() {
    let fake = FakeRegistry::good();
    let old = small("old");
    let name = fake.put(&old, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let digest = images.take(&name).await.unwrap().digest().to_owned();
    fake.put(&small("new"), "app", "1");
    pull(&images, &name).await.unwrap();
    drop(images);
    let images = store.open();
    let held = images.hold(&digest).unwrap();
    assert!(images.prune(true).await.unwrap().images.iter().all(|gone| *gone != digest));
    assert_eq!(read(held.root(), "hello"), "old");
    assert_eq!(images.take(&digest).await.unwrap().digest(), digest, "and it is found by its digest");
}

#[tokio::test]
async fn a_layer_stays_while_one_image_needs_it() {
    use fixtures::image::Entry;
    let fake = FakeRegistry::good();
    let base = small("base");
    let names = [
        fake.put(&base.clone().and(&[Entry::file("a", "a")]), "a", "1"),
        fake.put(&base.and(&[Entry::file("b", "b")]), "b", "1"),
    ];
    let store = TestStore::new();
    let images = store.open();
    for name in &names {
        pull(&images, name).await.unwrap();
    }
    assert_eq!(fake.blobs_asked(), 5, "the layer that both have came once");
    images.remove(&names[0]).await.unwrap();
    assert_eq!(blobs(&store), 4);
    let held = images.take(&names[1]).await.unwrap();
    assert_eq!((read(held.root(), "hello").as_str(), read(held.root(), "b").as_str()), ("base", "b"));
}

#[tokio::test]
async fn above_its_bound_the_store_lets_go_what_was_not_used_for_the_longest_time() {
    let fake = FakeRegistry::good();
    let names: Vec<_> = (0..3).map(|n| fake.put(&large(400_000, n), &format!("app{n}"), "1")).collect();
    let store = TestStore::new();
    // Room for two images: each is stored twice, packed and unpacked.
    let images = store.open_with(|config| config.bytes_max = 2_000_000);
    for (n, name) in names.iter().enumerate() {
        pull(&images, name).await.unwrap();
        if n == 1 {
            // The first is used again, so that the second is the oldest.
            images.take(&names[0]).await.unwrap();
        }
    }
    gone(&images, 2).await;
    let left: Vec<_> = images.list().await.unwrap().into_iter().flat_map(|image| image.names).collect();
    assert_eq!(left, [names[0].clone(), names[2].clone()]);
    // An image that a box uses stays, even beyond the limit.
    let held = images.take(&names[0]).await.unwrap();
    for name in &names[1..] {
        pull(&images, name).await.unwrap();
        gone(&images, 2).await;
    }
    assert!(held.root().join("noise").exists());
}

#[tokio::test]
async fn a_pull_that_is_slow_holds_what_is_its_own_and_nothing_else() {
    let gate = Arc::new(Gate::default());
    let held_back = Arc::clone(&gate);
    let slow_image = large(300_000, 1);
    let layer = digest(&slow_image.blobs()[0]);
    let slow = FakeRegistry::telling(move |asked| {
        asked.path.ends_with(&layer).then(|| Say::StallAfter(100_000, Arc::clone(&held_back)))
    });
    let slow_name = slow.put(&slow_image, "slow", "1");
    let fake = FakeRegistry::good();
    let names = ["a", "b"].map(|name| fake.put(&large(100_000, u64::from(name.as_bytes()[0])), name, "1"));
    let store = TestStore::new();
    let images = store.open();
    let pulling = images.pull(&slow_name).await.unwrap();
    while slow.blobs_asked() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for name in &names {
        pull(&images, name).await.unwrap();
    }
    images.remove(&names[0]).await.unwrap();
    assert_eq!(images.prune(true).await.unwrap().images.len(), 1);
    // Only the configuration of the slow image is left, which belongs to no image yet.
    assert_eq!((blobs(&store), trees(&store)), (1, 0));
    gate.open();
    let last = pulling.collect::<Vec<_>>().await.pop().unwrap();
    assert!(matches!(last, Ok(Progress::Done(_))), "{last:?}");
}

/// Returns a registry that answers `status` to requests for one layer of an image, and the
/// image's name. Its other layer is large and can be downloaded.
fn broken(status: u16) -> (FakeRegistry, String) {
    let image = large(1_000_000, 7).and(&[fixtures::image::Entry::file("lost", "x")]);
    let lost = digest(&image.blobs()[1]);
    let fake = FakeRegistry::telling(move |asked| {
        asked.path.ends_with(&lost).then(|| Say::Answer(status, Vec::new(), Vec::new()))
    });
    let name = fake.put(&image, "broken", "1");
    (fake, name)
}

#[tokio::test]
async fn a_pull_that_fails_costs_no_image_that_is_good() {
    for status in [404, 503] {
        let good = FakeRegistry::good();
        let keep = good.put(&large(400_000, 3), "keep", "1");
        let (_rogue, name) = broken(status);
        let store = TestStore::new();
        let images = store.open_with(|config| config.bytes_max = 1_500_000);
        pull(&images, &keep).await.unwrap();
        pull(&images, &name).await.unwrap_err();
        // Blobs of the failed pull are removed, since the limit is exceeded.
        tokio::time::timeout(Duration::from_secs(60), async {
            while blobs(&store) > 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        images.prune(false).await.unwrap();
        assert_eq!(images.list().await.unwrap()[0].names, [keep], "{status}");
    }
}

#[tokio::test]
async fn what_a_failed_pull_brought_stays_only_if_it_may_be_gone_on_with() {
    for (status, left) in [(404, 3), (503, 5)] {
        let good = FakeRegistry::good();
        let keep = good.put(&large(100_000, 3), "keep", "1");
        let (_rogue, name) = broken(status);
        let store = TestStore::new();
        let images = store.open();
        pull(&images, &keep).await.unwrap();
        pull(&images, &name).await.unwrap_err();
        assert_eq!(blobs(&store), left, "{status}");
        let large = pull(&images, &name).await;
        assert!(large.is_err());
    }
}

#[tokio::test]
async fn a_fault_for_good_takes_nothing_that_another_pull_goes_on_with() {
    let (_passing, passing_name) = broken(503);
    let image = large(100_000, 5).and(&[fixtures::image::Entry::file("gone", "x")]);
    let lost = digest(&image.blobs()[1]);
    let fake = FakeRegistry::telling(move |asked| {
        asked.path.ends_with(&lost).then(|| Say::Answer(404, Vec::new(), Vec::new()))
    });
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    unavailable(pull(&images, &passing_name).await);
    assert_eq!(blobs(&store), 2);
    invalid(pull(&images, &name).await);
    assert_eq!(blobs(&store), 2);
}

/// Waits until at most `left` images are left.
async fn gone(images: &Images, left: usize) {
    tokio::time::timeout(Duration::from_secs(60), async {
        while images.list().await.unwrap().len() > left {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_and_prunes_at_the_same_time_leave_whole_images() {
    let fake = FakeRegistry::good();
    let store = TestStore::new();
    let images = store.open();
    let names: Vec<_> = (0..4).map(|n| fake.put(&large(200_000, n), &format!("app{n}"), "1")).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for name in names.clone() {
        let images = images.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                let held = images.take(&name).await.unwrap();
                assert_eq!(std::fs::metadata(held.root().join("noise")).unwrap().len(), 200_000);
            }
        });
    }
    let pruning = images.clone();
    tasks.spawn(async move {
        for _ in 0..20 {
            pruning.prune(true).await.unwrap();
        }
    });
    tasks.join_all().await;
    for image in images.list().await.unwrap() {
        let held = images.hold(&image.digest).unwrap();
        assert_eq!(std::fs::metadata(held.root().join("noise")).unwrap().len(), 200_000);
        for layer in images.inspect(&image.digest).await.unwrap().layers {
            let hex = layer.digest.trim_start_matches("sha256:");
            assert!(store.dir().join("blobs/sha256").join(hex).exists(), "a blob of {image:?} is gone");
        }
    }
}
