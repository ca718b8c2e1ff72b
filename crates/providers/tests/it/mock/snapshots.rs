//! Snapshots in memory.

use domain::SnapshotId;
use providers::{Error, Provider, Snapshots, Spec};

use super::{id, is_failed, mock, sh, spec};

fn snapshot(n: u8) -> SnapshotId {
    SnapshotId::from_entropy([n; 10])
}

fn of_snapshot(n: u8) -> Spec {
    Spec { snapshot: Some(snapshot(n)), ..spec(&[]) }
}

#[tokio::test]
async fn a_box_of_a_snapshot_has_its_files_and_keeps_its_changes_to_itself() {
    let mock = mock();
    mock.start(&id(1), &spec(&[])).await.unwrap();
    sh(&mock, &id(1), "echo one > /workspace/a; rm /etc/passwd").await;
    let taken = mock.take(&id(1), &snapshot(1)).await.unwrap();
    assert!(taken.size_bytes > 0 && !taken.has_memory, "{taken:?}");
    sh(&mock, &id(1), "echo two > /workspace/a").await;
    for n in [2, 3] {
        mock.start(&id(n), &of_snapshot(1)).await.unwrap();
        assert_eq!(sh(&mock, &id(n), "cat /workspace/a").await.0, "one\n");
        assert_ne!(sh(&mock, &id(n), "cat /etc/passwd").await.2, 0, "what was removed is not there");
        sh(&mock, &id(n), "echo three > /workspace/a").await;
    }
    assert_eq!(sh(&mock, &id(1), "cat /workspace/a").await.0, "two\n");
}

#[tokio::test]
async fn boxes_outlive_the_snapshot_that_they_were_made_of() {
    let mock = mock();
    mock.start(&id(1), &spec(&[])).await.unwrap();
    sh(&mock, &id(1), "echo kept > /workspace/a").await;
    mock.take(&id(1), &snapshot(1)).await.unwrap();
    mock.stop(&id(1)).await.unwrap();
    mock.start(&id(2), &of_snapshot(1)).await.unwrap();
    mock.take(&id(2), &snapshot(2)).await.unwrap();
    assert_eq!(Snapshots::list(&mock).await.unwrap(), [snapshot(1), snapshot(2)]);
    for _ in 0..2 {
        Snapshots::remove(&mock, &snapshot(1)).await.unwrap();
    }
    assert_eq!(Snapshots::list(&mock).await.unwrap(), [snapshot(2)]);
    assert_eq!(sh(&mock, &id(2), "cat /workspace/a").await.0, "kept\n");
    mock.start(&id(3), &of_snapshot(2)).await.unwrap();
    assert_eq!(sh(&mock, &id(3), "cat /workspace/a").await.0, "kept\n");
}

#[tokio::test]
async fn an_unknown_snapshot_or_box_is_named() {
    let mock = mock();
    assert!(matches!(mock.take(&id(1), &snapshot(1)).await, Err(Error::Gone)));
    let Err(Error::NotFound(text)) = mock.start(&id(1), &of_snapshot(1)).await else { panic!("it started") };
    assert!(text.contains("there is no snapshot snap-"), "{text}");
    assert_eq!(mock.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn snapshots_fail_as_often_as_asked_and_leave_nothing() {
    let mock = mock();
    mock.start(&id(1), &spec(&[("mock.snapshot_fail", "1")])).await.unwrap();
    assert!(is_failed(&mock.take(&id(1), &snapshot(1)).await));
    assert_eq!(Snapshots::list(&mock).await.unwrap(), []);
    mock.take(&id(1), &snapshot(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_box_that_ends_during_its_snapshot_leaves_none() {
    let mock = mock();
    mock.start(&id(1), &spec(&[("mock.snapshot_delay", "10s"), ("mock.die_after", "1s")])).await.unwrap();
    assert!(matches!(mock.take(&id(1), &snapshot(1)).await, Err(Error::Gone)));
    assert_eq!(Snapshots::list(&mock).await.unwrap(), []);
}

#[tokio::test]
async fn a_disk_that_is_smaller_than_the_files_is_full() {
    let mock = mock();
    let mut large = spec(&[]);
    large.resources.disk_mb = 8;
    mock.start(&id(1), &large).await.unwrap();
    // Doubled until it is larger than the disk of the next box, which is 1 MiB.
    let script = "echo 0123456789abcdef0123456789abcdef > /workspace/a";
    sh(&mock, &id(1), script).await;
    for _ in 0..16 {
        sh(&mock, &id(1), "cat /workspace/a /workspace/a > /workspace/b; cat /workspace/b > /workspace/a").await;
    }
    mock.take(&id(1), &snapshot(1)).await.unwrap();
    assert!(matches!(mock.start(&id(2), &of_snapshot(1)).await, Err(Error::NoSpace)));
    assert_eq!(mock.inventory().await.unwrap().len(), 1);
}
