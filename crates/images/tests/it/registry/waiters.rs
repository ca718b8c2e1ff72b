//! Concurrent waits for one image, and callers that stop waiting before its end.

use std::sync::Arc;

use domain::Asker;
use images::PullPolicy;

use super::fake_registry::{FakeRegistry, Gate, Say};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_spawns_of_one_image_are_one_download() {
    let gate = Arc::new(Gate::default());
    let held_back = Arc::clone(&gate);
    let registry = FakeRegistry::telling(move |asked| asked.is_blob().then(|| Say::When(Arc::clone(&held_back))));
    let name = registry.put(&small("once"), "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (images, name) = (images.clone(), name.clone());
        waiters.spawn(async move { images.take(&name).await.unwrap() });
    }
    // All of them wait before the first layer arrives.
    while registry.blobs_asked() == 0 {
        tokio::task::yield_now().await;
    }
    gate.open();
    let held = waiters.join_all().await;
    assert_eq!(images.list().await.unwrap()[0].boxes, 50);
    drop(held);
    let mut paths: Vec<_> = registry.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(paths.len(), 3, "manifest, configuration, layer: {paths:?}");
    paths.dedup();
    assert_eq!(paths.len(), 3);
    assert_eq!(images.list().await.unwrap()[0].boxes, 0, "no box is counted any more");
}

#[tokio::test]
async fn two_names_of_one_image_download_its_layers_once() {
    let registry = FakeRegistry::good();
    let image = large(200_000, 1);
    let names = ["a", "b"].map(|tag| registry.put(&image, "app", tag));
    let store = TestStore::new();
    let images = store.open();
    let (a, b) = tokio::join!(images.take(&names[0]), images.take(&names[1]));
    assert_eq!(a.unwrap().digest(), b.unwrap().digest());
    assert_eq!(registry.blobs_asked(), 2, "{:?}", registry.asked());
    assert_eq!(images.list().await.unwrap()[0].names, names);
}

#[tokio::test]
async fn a_pull_goes_on_when_its_caller_leaves() {
    let gate = Arc::new(Gate::default());
    let held_back = Arc::clone(&gate);
    let registry = FakeRegistry::telling(move |asked| asked.is_blob().then(|| Say::When(Arc::clone(&held_back))));
    let name = registry.put(&small("x"), "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let progress = images.pull(&name).await.unwrap();
    drop(progress);
    gate.open();
    tokio::time::timeout(Duration::from_secs(120), async {
        while images.list().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_spawn_waits_no_longer_than_it_may_and_the_pull_goes_on() {
    let gate = Arc::new(Gate::default());
    let held_back = Arc::clone(&gate);
    let registry = FakeRegistry::telling(move |asked| asked.is_blob().then(|| Say::When(Arc::clone(&held_back))));
    let name = registry.put(&small("x"), "app", "1");
    let store = TestStore::new();
    let images = store.open_with(|config| config.pull_timeout = Duration::from_millis(200));
    let text = unavailable(images.take(&name).await);
    assert!(text.contains("still being pulled") && text.contains("try again"), "{text}");
    let joined = images.pull(&name).await.unwrap();
    gate.open();
    let last = joined.collect::<Vec<_>>().await.pop().unwrap();
    assert!(matches!(last, Ok(Progress::Done(_))), "{last:?}");
    images.take(&name).await.unwrap();
    assert_eq!(registry.asked().iter().filter(|asked| asked.path.contains("/manifests/")).count(), 1);
}

#[tokio::test]
async fn everybody_who_waits_is_told_why_it_failed() {
    let gate = Arc::new(Gate::default());
    let held_back = Arc::clone(&gate);
    let registry = FakeRegistry::telling(move |_| Some(Say::When(Arc::clone(&held_back))));
    let name = format!("{}/nothing:1", registry.address());
    let store = TestStore::new();
    let images = store.open();
    let (first, second) = (images.pull(&name).await.unwrap(), images.pull(&name).await.unwrap());
    gate.open();
    for progress in [first, second] {
        assert!(matches!(progress.collect::<Vec<_>>().await.pop(), Some(Err(Error::Invalid(_)))));
    }
    assert_eq!(registry.asked().len(), 1);
    // The failure is not remembered: the image may exist now.
    registry.put(&small("now"), "nothing", "1");
    images.take(&name).await.unwrap();
}

#[tokio::test]
async fn the_progress_of_a_pull_rises_to_the_size_of_the_image() {
    let registry = FakeRegistry::good();
    let name = registry.put(&large(3_000_000, 2), "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let mut seen: Vec<_> = images.pull(&name).await.unwrap().map(Result::unwrap).collect().await;
    let Some(Progress::Done(image)) = seen.pop() else { panic!("{seen:?}") };
    let mut last = 0;
    for progress in &seen {
        if let Progress::Downloading { bytes, bytes_total } = progress {
            assert!(*bytes >= last && bytes <= bytes_total, "{seen:?}");
            assert!(*bytes_total < image.size_bytes, "the manifest is not downloaded as a blob");
            last = *bytes;
        }
    }
    assert!(last > 0, "{seen:?}");
}

#[tokio::test]
async fn what_is_here_asks_nobody_unless_the_policy_says_always() {
    let registry = FakeRegistry::good();
    let name = registry.put(&small("one"), "app", "1");
    let store = TestStore::new();
    let images = store.open();
    images.take(&name).await.unwrap();
    let asked = registry.asked().len();
    images.take(&name).await.unwrap();
    assert_eq!(registry.asked().len(), asked);
    drop(images);

    let images = store.open_with(|config| config.pull = PullPolicy::Always);
    images.take(&name).await.unwrap();
    assert_eq!(registry.asked().len(), asked + 1, "only the manifest is asked for");
    let second = small("two");
    registry.put(&second, "app", "1");
    let held = images.take(&name).await.unwrap();
    assert_eq!(read(held.root(), "hello"), "two", "a tag that moved is followed");
    let listed = images.list().await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed[1].names.is_empty(), "the first one has lost its name: {listed:?}");
    drop(registry);
    unavailable(images.take(&name).await);
    let pinned = format!("{}@{}", name.rsplit_once(':').unwrap().0, second.digest());
    unavailable(images.take(&pinned).await);
    // A pull by the digest alone sends no request.
    images.take(&second.digest()).await.unwrap();
}

#[tokio::test]
async fn the_policy_never_asks_nobody() {
    let registry = FakeRegistry::good();
    let name = registry.put(&small("x"), "app", "1");
    let store = TestStore::new();
    let images = store.open_with(|config| config.pull = PullPolicy::Never);
    let text = invalid(images.take(&name).await);
    assert!(text.contains("`images.pull` is `never`") && text.contains("tidebox image pull"), "{text}");
    assert!(registry.asked().is_empty());
    // A pull by hand is carried out.
    pull(&images, &name).await.unwrap();
    images.take(&name).await.unwrap();
}

#[tokio::test]
async fn only_the_registries_that_are_allowed_are_asked() {
    let (allowed, other) = (FakeRegistry::good(), FakeRegistry::good());
    let store = TestStore::new();
    let images = store.open_with(|config| config.allowed_registries = vec![allowed.address().to_owned()]);
    let text = invalid(images.take(&other.put(&small("x"), "app", "1")).await);
    assert!(text.contains(other.address()) && text.contains(allowed.address()), "{text}");
    invalid(images.take("python:3.12").await);
    assert!(other.asked().is_empty());
    images.take(&allowed.put(&small("x"), "app", "1")).await.unwrap();
}

#[tokio::test]
async fn no_name_of_a_caller_gets_past_the_rules() {
    let store = TestStore::new();
    let images = store.open();
    let long = "a".repeat(5000);
    for name in ["", "host", "-v", "../x", "a/../b", "a\r\nX: y", "ünï", "A", "http://x/y", &long] {
        invalid(images.take(name).await);
        invalid(images.pull(name).await);
        invalid(images.inspect(name).await);
        invalid(images.remove(name).await);
    }
    invalid(images.take(&format!("sha256:{}", "0".repeat(64))).await);
}

#[tokio::test]
async fn a_store_that_is_closed_ends_its_pulls_and_goes_on_when_opened_again() {
    let image = large(600_000, 3);
    let half = image.blobs()[0].len() / 2;
    let registry = FakeRegistry::telling(move |asked| match (asked.is_blob(), asked.from()) {
        (true, 0) if asked.path.contains("/blobs/") => Some(Say::CutAfter(half)),
        (true, _) => Some(Say::Nothing),
        (false, _) => None,
    });
    let name = registry.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let progress = images.pull(&name).await.unwrap();
    while !registry.asked().iter().any(|asked| asked.from() > 0) {
        tokio::task::yield_now().await;
    }
    images.close().await;
    let last = progress.collect::<Vec<_>>().await.pop();
    assert!(matches!(&last, Some(Err(Error::Unavailable(text))) if text.contains("shutting down")), "{last:?}");
    unavailable(images.pull(&name).await);
}

/// Returns a registry that holds back every blob until the gate opens.
fn held_back() -> (Arc<Gate>, FakeRegistry) {
    let gate = Arc::new(Gate::default());
    let held_back = Arc::clone(&gate);
    let fake = FakeRegistry::telling(move |asked| asked.is_blob().then(|| Say::When(Arc::clone(&held_back))));
    (gate, fake)
}

#[tokio::test]
async fn one_registry_does_not_take_the_places_of_all() {
    let (gate, slow) = held_back();
    let quick = FakeRegistry::good();
    let here = quick.put(&small("here"), "here", "1");
    let store = TestStore::new();
    let images = store.open();
    let held = images.take(&here).await.unwrap();
    let names: Vec<_> = (0..17).map(|n| slow.put(&small(&n.to_string()), &format!("app{n}"), "1")).collect();
    let mut pulls = Vec::new();
    for name in &names[..16] {
        pulls.push(images.pull(name).await.unwrap());
    }
    let text = unavailable(images.pull(&names[16]).await.map(drop));
    assert!(text.contains("16 images of") && text.contains(slow.address()) && text.contains("try again"), "{text}");
    // A second request for a running pull still waits for it, and pulls from other registries
    // start.
    pulls.push(images.pull(&names[0]).await.unwrap());
    pull(&images, &quick.put(&small("quick"), "quick", "1")).await.unwrap();
    gate.open();
    for pulling in pulls {
        let last = pulling.collect::<Vec<_>>().await.pop().unwrap();
        assert!(matches!(last, Ok(Progress::Done(_))), "{last:?}");
    }
    images.take(&names[16]).await.unwrap();
    drop(held);
}

#[tokio::test]
async fn what_is_here_is_pulled_again_though_all_places_are_taken() {
    let (gate, slow) = held_back();
    let store = TestStore::new();
    let images = store.open();
    let here = small("here");
    let name = slow.put(&here, "here", "1");
    gate.open();
    pull(&images, &name).await.unwrap();
    let (gate, others): (Vec<_>, Vec<_>) = (0..4).map(|_| held_back()).unzip();
    let mut pulls = Vec::new();
    for n in 0..64 {
        let name = others[n / 16].put(&small(&n.to_string()), &format!("app{n}"), "1");
        pulls.push(images.pull(&name).await.unwrap());
    }
    let text = unavailable(images.pull(&slow.put(&small("new"), "new", "1")).await.map(drop));
    assert!(text.contains("64 images are being pulled"), "{text}");
    assert_eq!(pull(&images, &name).await.unwrap(), here.digest());
    gate.iter().for_each(|gate| gate.open());
}

#[tokio::test]
async fn a_removal_ends_the_pull_of_that_name() {
    let (gate, fake) = held_back();
    let image = large(300_000, 4);
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let removing = async {
        while fake.blobs_asked() == 0 {
            tokio::task::yield_now().await;
        }
        images.remove(&name).await
    };
    let (waited, removed) = tokio::join!(images.take(&name), removing);
    removed.unwrap();
    let text = unavailable(waited);
    assert!(text.contains(&name) && text.contains("cancelled by a removal"), "{text}");
    assert!(matches!(images.remove(&name).await, Err(Error::NotFound(_))), "there is nothing left");
    for folder in ["blobs/sha256", "ingest"] {
        assert_eq!(std::fs::read_dir(store.dir().join(folder)).unwrap().count(), 0, "{folder}");
    }
    nothing_is_trusted(&store, &images).await;
    gate.open();
    assert_eq!(pull(&images, &name).await.unwrap(), image.digest(), "and it can be asked for again");
}

#[tokio::test]
async fn closing_the_store_ends_an_unpacking() {
    let fake = FakeRegistry::good();
    let files = (0..8_000).map(|n| fixtures::image::Entry::file(n.to_string(), "")).collect();
    let name = fake.put(&fixtures::image::Image::new(&[files]), "many", "1");
    let store = TestStore::new();
    let images = store.open();
    let mut progress = images.pull(&name).await.unwrap();
    while !matches!(progress.next().await, Some(Ok(Progress::Unpacking { bytes: 1.. }))) {}
    images.close().await;
    assert_eq!(std::fs::read_dir(store.dir().join("trees")).unwrap().count(), 0, "it goes on");
    let last = progress.collect::<Vec<_>>().await.pop().unwrap();
    let text = unavailable(last);
    assert!(text.contains("shutting down") && text.contains("resumes the pull"), "{text}");
    drop(images);
    let asked = fake.blobs_asked();
    pull(&store.open(), &name).await.unwrap();
    assert_eq!(fake.blobs_asked(), asked, "what came is kept");
}

#[tokio::test]
async fn a_new_image_comes_while_another_caller_holds_the_places_for_pulls() {
    let (gates, slow): (Vec<_>, Vec<_>) = (0..4).map(|_| held_back()).unzip();
    let quick = FakeRegistry::good();
    let names: Vec<_> = (0..64).map(|n| slow[n / 16].put(&small(&n.to_string()), &format!("app{n}"), "1")).collect();
    let new = |n: &str| quick.put(&small(n), n, "1");
    let [greedy, honest] = [1, 2].map(|number| Some(Asker { caller: number, address: number }));
    let store = TestStore::new();
    let images = store.open();
    let (mut waited, mut refused) = (Vec::new(), Vec::new());
    for name in &names {
        match images.pull_for(name, greedy).await {
            Ok(pull) => waited.push(pull),
            Err(error) => refused.push((name, error)),
        }
    }
    assert_eq!(waited.len(), 32, "half of all, and of each registry");
    let text = unavailable(images.take_for(&new("more"), greedy).await.map(drop));
    assert!(text.contains("for this caller") && text.contains("try again"), "{text}");
    images.take_for(&new("honest"), honest).await.unwrap();
    // All others are accepted too, from callers that disconnect.
    for (name, _) in &refused {
        drop(images.pull(name).await.unwrap());
    }
    images.take_for(&new("other"), honest).await.unwrap();
    // Pulls with waiting callers have not given way.
    gates.iter().for_each(|gate| gate.open());
    for (pulling, _interest) in waited {
        let last = pulling.collect::<Vec<_>>().await.pop().unwrap();
        assert!(matches!(last, Ok(Progress::Done(_))), "{last:?}");
    }
}
