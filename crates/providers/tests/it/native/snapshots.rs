//! Snapshots of servers with other privileges, and disk limits that exclude them.

use domain::SnapshotId;
use providers::{Error, Provider, Spec};

use crate::native::harness::{TestProvider, is_root, spec};

fn snapshot_id(n: u8) -> SnapshotId {
    SnapshotId::from_entropy([n; 10])
}

#[tokio::test]
async fn a_snapshot_of_a_server_with_other_privileges_is_refused_with_the_way_to_use_it() {
    let provider = TestProvider::new().await;
    let Some(snapshots) = provider.native.snapshots() else {
        println!("SKIPPED: this host cannot stop the processes of a box");
        return;
    };
    let origin = provider.start().await;
    let snapshot = snapshot_id(1);
    snapshots.take(&origin.id, &snapshot).await.unwrap();
    let folder = provider.folder().join("snapshots").join(snapshot.as_str());
    let way = if is_root() {
        std::fs::create_dir(folder.join("layers")).unwrap();
        "without root"
    } else {
        host_disk::remove_tree(&folder.join("layers")).unwrap();
        "as root"
    };
    let refused = provider.refusal(&Spec { snapshot: Some(snapshot.clone()), ..spec() }).await;
    assert!(matches!(&refused, Error::NotSupported(text) if text.contains(way)), "{refused:?}");
    snapshots.remove(&snapshot).await.unwrap();
    let refused = provider.refusal(&Spec { snapshot: Some(snapshot), ..spec() }).await;
    assert!(matches!(&refused, Error::NotFound(_)), "{refused:?}");
}

#[tokio::test]
async fn without_root_a_disk_limit_and_a_snapshot_exclude_each_other() {
    let provider = TestProvider::new().await;
    let Some(snapshots) = provider.native.snapshots().filter(|_| !is_root()) else {
        println!("SKIPPED: this host cannot stop the processes of a box, or the server is root");
        return;
    };
    let mut bounded = spec();
    bounded.resources.disk_mb = 16;
    let origin = provider.start_with(bounded.clone()).await;
    let refused = snapshots.take(&origin.id, &snapshot_id(2)).await.unwrap_err();
    assert!(matches!(&refused, Error::NotSupported(text) if text.contains("`disk_mb`")), "{refused:?}");
    let snapshot = snapshot_id(3);
    snapshots.take(&provider.start().await.id, &snapshot).await.unwrap();
    let refused = provider.refusal(&Spec { snapshot: Some(snapshot), ..bounded }).await;
    assert!(matches!(&refused, Error::NotSupported(text) if text.contains("disk_mb")), "{refused:?}");
}
