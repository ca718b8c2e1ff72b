//! Tests of many boxes at once.

use std::collections::HashSet;

use providers::Provider;

use crate::native::harness::{TestBox, TestProvider, cgroups_named, is_root, new_id, spec};

#[tokio::test(flavor = "multi_thread")]
async fn fifty_boxes_start_at_once_and_are_all_different() {
    const BOXES: usize = 50;
    let provider = TestProvider::new().await;
    let ids: Vec<_> = (0..BOXES).map(|_| new_id()).collect();
    let small = {
        let mut spec = spec();
        spec.resources.memory_mb = 32;
        spec
    };
    let started = futures_util::future::join_all(ids.iter().map(|id| provider.native.start(id, &small))).await;
    assert!(started.iter().all(Result::is_ok), "{:?}", started.iter().find(|one| one.is_err()));
    let mut maps = HashSet::new();
    for id in &ids {
        maps.insert(TestBox::of(&provider, id.clone()).text("cat /proc/self/uid_map").await);
    }
    if is_root() {
        assert_eq!(maps.len(), BOXES);
    }
    let stopped = futures_util::future::join_all(ids.iter().map(|id| provider.native.stop(id))).await;
    assert!(stopped.iter().all(Result::is_ok), "{:?}", stopped.iter().find(|one| one.is_err()));
    assert!(provider.native.inventory().await.unwrap().is_empty());
    assert!(ids.iter().all(|id| cgroups_named(id.as_str()).is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_started_many_times_at_once_is_one_box() {
    let provider = TestProvider::new().await;
    let id = new_id();
    let spec = spec();
    let started = futures_util::future::join_all((0..8).map(|_| provider.native.start(&id, &spec))).await;
    assert!(started.iter().all(Result::is_ok));
    assert_eq!(started.iter().filter(|one| one.as_ref().is_ok_and(|started| !started.phases.is_empty())).count(), 1);
    assert_eq!(provider.native.inventory().await.unwrap().len(), 1);
}
