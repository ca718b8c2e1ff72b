//! Snapshots that an Engine keeps as images, beyond the conformance suite.

use domain::SnapshotId;
use providers::docker::{Docker, DockerConfig};
use providers::{Error, Pauses, Provider, Snapshots, Spec};

use crate::docker::doomed::{self, Doomed};
use crate::docker::harness::{SPEAKING, TestBox, TestProvider, engine, new_id, new_store, spec};
use crate::test_box::{eventually, new_snapshot_id};

const DOOMED: &str = "takes_a_snapshot_until_it_is_killed";

fn of(snapshot: &SnapshotId) -> Spec {
    Spec { snapshot: Some(snapshot.clone()), ..spec() }
}

impl TestProvider {
    fn snapshots(&self) -> &dyn Snapshots {
        self.docker.snapshots().expect("this configuration has them")
    }

    /// Returns how many images of this store the Engine has, those without a name too.
    fn images(&self) -> usize {
        let filter = format!("%7B%22label%22%3A%5B%22tidebox.store%3D{}%22%5D%7D", self.config.store_id.as_str());
        let (status, answer) = self.engine.api("GET", &format!("/images/json?filters={filter}"), b"");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
        serde_json::from_slice::<Vec<serde_json::Value>>(&answer).unwrap().len()
    }
}

#[tokio::test]
async fn an_image_of_a_removed_snapshot_goes_with_the_last_box_of_it() {
    let Some(provider) = TestProvider::new().await else { return };
    let origin = provider.start().await;
    origin.sh("echo kept > /workspace/file").await;
    let (first, second) = (new_snapshot_id(), new_snapshot_id());
    provider.snapshots().take(&origin.id, &first).await.unwrap();
    let one = provider.start_with(of(&first)).await;
    one.sh("echo more > /workspace/more").await;
    provider.snapshots().take(&one.id, &second).await.unwrap();
    let two = provider.start_with(of(&second)).await;
    assert_eq!(provider.images(), 2);

    // The second and a box need the first.
    provider.snapshots().remove(&first).await.unwrap();
    assert_eq!(provider.snapshots().list().await.unwrap(), std::slice::from_ref(&second));
    provider.docker.stop(&one.id).await.unwrap();
    assert_eq!(two.text("cat /workspace/file /workspace/more").await, "kept\nmore\n");
    provider.snapshots().remove(&second).await.unwrap();
    assert_eq!(provider.images(), 1, "the box needs it");
    assert_eq!(two.text("cat /workspace/file /workspace/more").await, "kept\nmore\n");
    provider.docker.stop(&two.id).await.unwrap();
    assert_eq!(provider.images(), 0);
}

#[tokio::test]
async fn pruning_the_images_of_an_engine_takes_no_snapshot_and_no_box() {
    let Some(provider) = TestProvider::new().await else { return };
    let origin = provider.start().await;
    origin.sh("echo kept > /workspace/file").await;
    let (kept, removed) = (new_snapshot_id(), new_snapshot_id());
    for snapshot in [&kept, &removed] {
        provider.snapshots().take(&origin.id, snapshot).await.unwrap();
    }
    let sandbox = provider.start_with(of(&removed)).await;
    provider.snapshots().remove(&removed).await.unwrap();
    let (status, answer) = provider.engine.api("POST", "/images/prune", b"");
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    assert_eq!(sandbox.text("cat /workspace/file").await, "kept\n");
    assert_eq!(provider.start_with(of(&kept)).await.text("cat /workspace/file").await, "kept\n");
}

#[tokio::test]
async fn a_box_with_files_outside_of_its_root_has_no_snapshot_and_says_why() {
    let Some(provider) = TestProvider::new().await else { return };
    let with_volume = provider.start_with(Spec { image: SPEAKING.to_owned(), ..spec() }).await;
    let refused = provider.snapshots().take(&with_volume.id, &new_snapshot_id()).await;
    assert!(matches!(&refused, Err(Error::NotSupported(text)) if text.contains("/data")), "{refused:?}");
    assert_eq!(provider.snapshots().list().await.unwrap(), []);

    let changes: [fn(&mut DockerConfig); 3] = [
        |config| config.read_only_rootfs = true,
        |config| config.user = "1000:1000".to_owned(),
        |config| drop(config.tmpfs.insert("/workspace".to_owned(), "size=16m,mode=1777".to_owned())),
    ];
    for change in changes {
        let Some(provider) = TestProvider::with(change).await else { return };
        assert!(provider.docker.snapshots().is_none());
        let sandbox = provider.start().await;
        // As after a change of the configuration.
        let usual = DockerConfig {
            socket: provider.config.socket.clone(),
            ..DockerConfig::new(provider.config.store_id.clone())
        };
        let later = Docker::open(usual).await.unwrap();
        let refused = later.snapshots().unwrap().take(&sandbox.id, &new_snapshot_id()).await;
        assert!(matches!(&refused, Err(Error::NotSupported(text)) if text.contains("/workspace")), "{refused:?}");
        assert_eq!(provider.images(), 0);
    }
}

#[tokio::test]
async fn labels_of_an_image_that_look_like_those_of_a_snapshot_are_not_believed() {
    const FORGED: &str = "test/forged:1";
    let Some(provider) = TestProvider::new().await else { return };
    let root = crate::docker::harness::busybox_root();
    let words = [
        "LABEL tidebox.snapshot=snap-aaaaaaaaaaaaaaaa",
        r#"LABEL tidebox.origin="{\"defaults\":{\"workdir\":\"/forged\"},\"entrypoint\":[],\"image_bytes\":99999999999}""#,
        "WORKDIR /home/ann",
    ];
    provider.engine.import(FORGED, &root, &words);
    let spec = Spec { image: FORGED.to_owned(), ..spec() };
    let origin = provider.start_with(spec.clone()).await;
    origin.sh("head -c 1000000 /dev/urandom > /tmp/file").await;
    let snapshot = new_snapshot_id();
    let taken = provider.snapshots().take(&origin.id, &snapshot).await.unwrap();
    assert!(taken.size_bytes >= 1_000_000 && taken.size_bytes < 2_000_000, "{taken:?}");
    let made = provider.start_with(Spec { snapshot: Some(snapshot), ..spec }).await;
    assert_eq!(made.text("pwd").await, "/home/ann\n");
}

#[tokio::test]
async fn a_paused_box_is_still_paused_for_the_engine_after_its_snapshot() {
    let Some(provider) = TestProvider::new().await else { return };
    let origin = provider.start().await;
    provider.docker.pause(&origin.id).await.unwrap();
    provider.snapshots().take(&origin.id, &new_snapshot_id()).await.unwrap();
    assert_eq!(provider.docker.paused().await.unwrap(), std::slice::from_ref(&origin.id));
    provider.docker.resume(&origin.id).await.unwrap();
    assert_eq!(origin.text("echo on").await, "on\n");
}

/// Runs in a process of its own, started by the next test; does nothing otherwise.
#[tokio::test]
async fn takes_a_snapshot_until_it_is_killed() {
    let Some(docker) = doomed::provider().await else { return };
    let id = new_id();
    docker.start(&id, &spec()).await.unwrap();
    let sandbox = TestBox::of(&docker, id.clone());
    sandbox.sh("head -c 100000000 /dev/urandom > /workspace/large").await;
    doomed::say_started(&id);
    docker.snapshots().unwrap().take(&id, &new_snapshot_id()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_killed_during_a_snapshot_leaves_a_box_that_goes_on_and_no_image() {
    if engine().is_none() {
        return;
    }
    let Some(provider) = TestProvider::with(|config| config.store_id = new_store()).await else { return };
    let server = Doomed::start(module_path!(), DOOMED, &provider);
    let id = server.id.clone();
    eventually("the box stands still", || async { provider.docker.paused().await.unwrap().contains(&id) }).await;
    server.kill();

    let later = provider.reopen().await;
    eventually("the box goes on", || async { later.paused().await.unwrap().is_empty() }).await;
    // As the reconciler does with what has no row.
    for left in later.snapshots().unwrap().list().await.unwrap() {
        later.snapshots().unwrap().remove(&left).await.unwrap();
    }
    assert_eq!(provider.images(), 0);
    assert_eq!(TestBox::of(&later, id).text("wc -c < /workspace/large").await, "100000000\n");
}
