//! Tests of the running reconciler, with providers that fail or hang.

use domain::{Metadata, SnapshotId, SpawnOptions};
use providers::mock::Mock;
use providers::{Provider, Snapshots, Spec};

use super::*;
use crate::control::NewSnapshotRequest;
use crate::control::SpawnRequest;
use crate::test::harness::{self, TestApp, TestProvider};
use store::NewSandbox;
use store::workers::PlacementFilter;

/// Deadline for each wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two providers, the first of which fails or hangs, and a running reconciler.
struct Two {
    app: TestApp,
    first: Arc<TestProvider>,
    second: Arc<TestProvider>,
    stop: CancellationToken,
}

impl Two {
    async fn new() -> Self {
        let (first, second) = (TestProvider::new("first"), TestProvider::new("second"));
        let app = TestApp::builder().provider(first.clone()).provider(second.clone()).start().await;
        Self { app, first, second, stop: CancellationToken::new() }
    }

    fn reconcile(&self) -> JoinSet<()> {
        let mut reconciling = JoinSet::new();
        reconciling.spawn(run(Arc::clone(&self.app.control), "/".into(), self.stop.clone()));
        reconciling
    }

    async fn a_box_of(&self, provider: &str, ttl: Duration) -> SandboxId {
        let options = SpawnOptions { provider: Some(provider.to_owned()), ttl: Some(ttl), ..SpawnOptions::default() };
        let request = SpawnRequest { options, ..SpawnRequest::default() };
        self.app.control.spawn(request).await.unwrap().sandbox.id
    }

    async fn is_destroyed(&self, id: &SandboxId) -> bool {
        self.app.state(id).await == State::Destroyed
    }

    async fn end(self, mut reconciling: JoinSet<()>) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, reconciling.join_next()).await;
        ended.expect("it stops when cancelled").unwrap().unwrap();
    }
}

async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !reached().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what} did not come about"));
}

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_hangs_harms_nothing_but_itself() {
    let two = Two::new().await;
    let stuck: Vec<SandboxId> = vec![two.a_box_of("first", SHORT).await, two.a_box_of("first", SHORT).await];
    let expiring = two.a_box_of("second", SHORT).await;
    let vanishing = two.a_box_of("second", LONG).await;
    two.first.hang();
    let started = std::time::Instant::now();
    let reconciling = two.reconcile();
    until("the end of what expires", async || two.is_destroyed(&expiring).await).await;
    two.second.mock.vanish(&vanishing);
    until("the end of what vanished", async || two.is_destroyed(&vanishing).await).await;
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    for id in &stuck {
        until("the wish to end it", async || two.app.state(id).await == State::Destroying).await;
    }
    let checked = |name| two.app.control.registry().get(name).unwrap().checked();
    until("its health", async || checked("first").health.error.is_some()).await;
    assert!(checked("first").health.error.unwrap().contains("no response"), "in words");
    assert_eq!(checked("second").health.error, None);
    two.end(reconciling).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_fails_does_not_keep_the_next_from_being_looked_at() {
    let two = Two::new().await;
    let vanishing = two.a_box_of("second", LONG).await;
    let kept = two.a_box_of("first", LONG).await;
    two.first.fail();
    two.second.mock.vanish(&vanishing);
    let reconciling = two.reconcile();
    until("the end of what vanished", async || two.is_destroyed(&vanishing).await).await;
    assert_eq!(two.app.state(&kept).await, State::Running, "its end is not noticed");
    two.end(reconciling).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_that_cannot_be_removed_does_not_keep_the_others() {
    let two = Two::new().await;
    let spec = |fails: &str| Spec {
        egress: Vec::new(),
        image: "any".to_owned(),
        resources: harness::policy().resources,
        entrypoint: false,
        metadata: Metadata::from([("mock.stop_fail".to_owned(), fails.to_owned())]),
        lifetime: LONG,
        trust: None,
        snapshot: None,
        is_copy: false,
        asker: None,
    };
    // In the order of the list.
    let ids = [1, 2, 3].map(|n| SandboxId::from_entropy([n; 10]));
    for (id, fails) in ids.iter().zip(["1000000", "0", "0"]) {
        two.first.mock.start(id, &spec(fails)).await.unwrap();
    }
    let lost = two.a_box_of("first", LONG).await;
    two.first.mock.vanish(&lost);
    let kept = two.app.control.reconcile_provider("first").await.unwrap();
    assert_eq!(kept.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&ids[0]]);
    let left = two.first.mock.inventory().await.unwrap();
    assert_eq!(left.iter().map(|found| &found.id).collect::<Vec<_>>(), [&ids[0]]);
    assert!(two.is_destroyed(&lost).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_box_that_a_request_removes_during_a_comparison_is_no_orphan() {
    let two = Two::new().await;
    let id = two.a_box_of("first", LONG).await;
    two.app.control.destroy(id.as_str()).await.unwrap();
    until("its end", async || two.is_destroyed(&id).await).await;
    two.first.stopped.lock().clear();
    two.first.remove_after_inventory(&id);
    assert!(two.app.control.reconcile_provider("first").await.unwrap().is_empty());
    assert!(two.first.stopped.lock().is_empty(), "it is removed once more");
}

#[tokio::test]
async fn everything_that_a_crash_left_is_removed_however_much_it_is() {
    let (app, _, id) = with_a_box().await;
    let row = app.control.store().sandbox(&id).await.unwrap().unwrap();
    let placement = PlacementFilter { stale_after: LONG, lease_ttl: LONG, here: true, reachable: [].into() };
    let ids: Vec<SandboxId> = (0..LEFT_MAX + 10).map(|_| SandboxId::from_entropy(rand::random())).collect();
    for (n, id) in ids.iter().enumerate() {
        let new = NewSandbox {
            sandbox: Sandbox { id: id.clone(), state: State::Creating, ..row.clone() },
            egress: domain::SandboxEgress::default(),
            caps: domain::Caps::default(),
            key: None,
            placement: placement.clone(),
            pool: None,
        };
        app.control.store().admit(&new).await.unwrap();
        if n % 2 == 0 {
            app.control.begin_destroy(id, StopReason::Requested).await.unwrap();
        }
    }
    for _ in 0..3 {
        settle(&app.control).await;
    }
    for id in &ids {
        assert_eq!(app.state(id).await, State::Destroyed);
    }
    assert_eq!(app.state(&id).await, State::Running);
}

/// Returns a service with a sandbox of `mock`.
async fn with_a_box() -> (TestApp, Mock, SandboxId) {
    let mock = Mock::new(|| domain::Timestamp::UNIX_EPOCH);
    let app = TestApp::builder().provider(Arc::new(mock.clone())).start().await;
    let id = app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
    (app, mock, id)
}

#[tokio::test]
async fn a_snapshot_without_a_row_is_removed_and_one_with_a_row_is_not() {
    let (app, mock, id) = with_a_box().await;
    let kept = app.control.take_snapshot(id.as_str(), NewSnapshotRequest::default()).await.unwrap();
    let orphan = SnapshotId::from_entropy([1; 10]);
    mock.take(&id, &orphan).await.unwrap();
    app.control.reconcile_provider("mock").await.unwrap();
    assert_eq!(Snapshots::list(&mock).await.unwrap(), std::slice::from_ref(&kept.id));
    app.control.snapshot(kept.id.as_str(), None).await.unwrap();
}

#[tokio::test]
async fn a_removal_of_a_snapshot_that_a_crash_cut_short_is_finished() {
    let (app, mock, id) = with_a_box().await;
    let snapshot = app.control.take_snapshot(id.as_str(), NewSnapshotRequest::default()).await.unwrap().id;
    app.control.store().begin_snapshot_removal(&snapshot).await.unwrap();
    assert!(app.control.snapshot(snapshot.as_str(), None).await.is_err(), "it is used no more");
    app.control.reconcile_provider("mock").await.unwrap();
    assert_eq!(Snapshots::list(&mock).await.unwrap(), []);
    assert_eq!(app.control.store().snapshot(&snapshot).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_being_taken_is_left_alone() {
    let mock = Mock::new(|| domain::Timestamp::UNIX_EPOCH);
    let app = TestApp::builder().provider(Arc::new(mock.clone())).start().await;
    let metadata = Metadata::from([("mock.snapshot_delay".to_owned(), "200ms".to_owned())]);
    let options = SpawnOptions { metadata, ..SpawnOptions::default() };
    let request = SpawnRequest { options, ..SpawnRequest::default() };
    let id = app.control.spawn(request).await.unwrap().sandbox.id;
    let control = Arc::clone(&app.control);
    let take = app
        .control
        .tasks()
        .spawn(async move { control.take_snapshot(id.as_str(), NewSnapshotRequest::default()).await.unwrap() });
    while !take.is_finished() {
        app.control.reconcile_provider("mock").await.unwrap();
    }
    let snapshot = take.await.unwrap();
    app.control.reconcile_provider("mock").await.unwrap();
    assert_eq!(Snapshots::list(&mock).await.unwrap(), std::slice::from_ref(&snapshot.id));
    app.control.snapshot(snapshot.id.as_str(), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_can_be_deleted_while_the_reconciler_looks() {
    let (app, _, id) = with_a_box().await;
    for _ in 0..50 {
        let snapshot = app.control.take_snapshot(id.as_str(), NewSnapshotRequest::default()).await.unwrap().id;
        let (control, reconciled) = (Arc::clone(&app.control), app.control.reconcile_provider("mock"));
        let delete = app.control.tasks().spawn(async move { control.delete_snapshot(snapshot.as_str(), None).await });
        reconciled.await.unwrap();
        delete.await.unwrap().unwrap();
    }
}
