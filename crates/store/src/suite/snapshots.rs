//! Cases on snapshots.

use std::time::Duration;

use domain::{OwnerId, Resources, SandboxId, SnapshotId};

use super::start;
use crate::clock::after;
use crate::{NewSnapshot, Snapshot, SnapshotBounds, SnapshotCursor, SnapshotFilter, SnapshotState, Store};

pub(super) const FREE: SnapshotBounds = SnapshotBounds { count: 100, per_owner: 0, bytes: 0, left_bytes: 0 };

pub(super) fn id(n: u8) -> SnapshotId {
    SnapshotId::from_entropy([n; 10])
}

pub(super) fn snapshot(n: u8) -> Snapshot {
    Snapshot {
        id: id(n),
        name: Some(format!("number {n}")),
        owner: Some(OwnerId::parse(if n.is_multiple_of(2) { "even" } else { "odd" }).unwrap()),
        sandbox: SandboxId::from_entropy([n; 10]),
        provider: "mock".to_owned(),
        image: "host".to_owned(),
        resources: Resources { memory_mb: 64, vcpus: 2, disk_mb: 8, pids: 16 },
        state: SnapshotState::Creating,
        is_temporary: false,
        is_of_template: false,
        has_memory: false,
        size_bytes: 0,
        created_at: after(start(), Duration::from_secs(n.into())),
    }
}

pub(super) async fn run(store: &dyn Store) {
    a_row_is_read_back_and_listed_when_it_is_ready(store).await;
    a_list_in_parts_is_newest_first(store).await;
    bounds_hold_and_temporary_ones_are_under_none(store).await;
    the_bound_of_one_owner_is_that_of_no_other(store).await;
}

async fn forget_all(store: &dyn Store) {
    for n in 0..20 {
        store.begin_snapshot_removal(&id(n)).await.unwrap();
        store.delete_snapshot(&id(n)).await.unwrap();
    }
}

async fn ids(store: &dyn Store, filter: &SnapshotFilter) -> Vec<SnapshotId> {
    store.snapshots(filter, None, 99).await.unwrap().into_iter().map(|snapshot| snapshot.id).collect()
}

async fn a_row_is_read_back_and_listed_when_it_is_ready(store: &dyn Store) {
    let new = snapshot(1);
    assert_eq!(store.insert_snapshot(&new, FREE).await.unwrap(), NewSnapshot::Done);
    assert_eq!(store.snapshot(&id(1)).await.unwrap(), Some(new.clone()));
    assert_eq!(store.unfinished_snapshots().await.unwrap(), std::slice::from_ref(&new));
    assert_eq!(ids(store, &SnapshotFilter::default()).await, []);
    assert!(!store.delete_snapshot(&id(1)).await.unwrap(), "a row goes when its removal has begun");
    let ready = Snapshot { state: SnapshotState::Ready, size_bytes: 7, has_memory: true, ..new };
    assert_eq!(store.complete_snapshot(&id(1), 7, true, FREE).await.unwrap(), Some(ready.clone()));
    assert_eq!(store.complete_snapshot(&id(1), 8, false, FREE).await.unwrap(), None, "it is completed once");
    assert_eq!(store.snapshots(&SnapshotFilter::default(), None, 9).await.unwrap(), std::slice::from_ref(&ready));
    assert_eq!(store.snapshots_of("mock").await.unwrap(), [id(1)]);
    assert_eq!(store.snapshots_of("native").await.unwrap(), []);
    assert_eq!(store.unfinished_snapshots().await.unwrap(), []);
    let going = Snapshot { state: SnapshotState::Destroying, ..ready };
    assert_eq!(store.begin_snapshot_removal(&id(1)).await.unwrap(), Some(going.clone()));
    assert_eq!(store.complete_snapshot(&id(1), 8, false, FREE).await.unwrap(), None);
    assert_eq!(store.unfinished_snapshots().await.unwrap(), [going]);
    assert_eq!(store.snapshots_of("mock").await.unwrap(), []);
    assert!(store.delete_snapshot(&id(1)).await.unwrap());
    assert!(!store.delete_snapshot(&id(1)).await.unwrap());
    assert_eq!(store.begin_snapshot_removal(&id(1)).await.unwrap(), None);
    assert_eq!(store.snapshot(&id(1)).await.unwrap(), None);
}

async fn a_list_in_parts_is_newest_first(store: &dyn Store) {
    for n in [3, 1, 5, 2, 4] {
        store.insert_snapshot(&snapshot(n), FREE).await.unwrap();
        store.complete_snapshot(&id(n), 1, false, FREE).await.unwrap();
    }
    // Two of the same moment.
    let twin = Snapshot { created_at: snapshot(5).created_at, ..snapshot(6) };
    store.insert_snapshot(&twin, FREE).await.unwrap();
    store.complete_snapshot(&id(6), 1, false, FREE).await.unwrap();
    let all = ids(store, &SnapshotFilter::default()).await;
    assert_eq!(all.len(), 6);
    assert_eq!(all[2..], [id(4), id(3), id(2), id(1)]);
    let mut parts = Vec::new();
    let mut at = None;
    while let Some(next) = store.snapshots(&SnapshotFilter::default(), at.as_ref(), 1).await.unwrap().into_iter().next()
    {
        at = Some(SnapshotCursor { created_at: next.created_at, id: next.id.clone() });
        parts.push(next.id);
    }
    assert_eq!(parts, all);
    let odd = SnapshotFilter { owner: snapshot(1).owner, ..SnapshotFilter::default() };
    assert_eq!(ids(store, &odd).await, [id(5), id(3), id(1)]);
    let of_one = SnapshotFilter { sandbox: Some(snapshot(3).sandbox), ..odd.clone() };
    assert_eq!(ids(store, &of_one).await, [id(3)]);
    assert_eq!(ids(store, &SnapshotFilter { sandbox: Some(snapshot(2).sandbox), ..odd }).await, []);
    forget_all(store).await;
}

async fn bounds_hold_and_temporary_ones_are_under_none(store: &dyn Store) {
    let bounds = SnapshotBounds { count: 2, per_owner: 0, bytes: 100, left_bytes: 0 };
    let temporary = |n| Snapshot { is_temporary: true, ..snapshot(n) };
    for n in [10, 11] {
        assert_eq!(store.insert_snapshot(&temporary(n), bounds).await.unwrap(), NewSnapshot::Done);
    }
    for n in [1, 2] {
        assert_eq!(store.insert_snapshot(&snapshot(n), bounds).await.unwrap(), NewSnapshot::Done);
    }
    assert_eq!(store.insert_snapshot(&snapshot(3), bounds).await.unwrap(), NewSnapshot::TooMany);
    assert_eq!(store.insert_snapshot(&temporary(12), bounds).await.unwrap(), NewSnapshot::Done);
    assert!(store.complete_snapshot(&id(1), 60, false, bounds).await.unwrap().is_some());
    assert_eq!(store.complete_snapshot(&id(2), 41, false, bounds).await.unwrap(), None, "it would be too many bytes");
    assert!(store.complete_snapshot(&id(2), 40, false, bounds).await.unwrap().is_some());
    let wider = SnapshotBounds { count: 3, ..bounds };
    assert_eq!(store.insert_snapshot(&snapshot(3), wider).await.unwrap(), NewSnapshot::TooLarge);
    assert_eq!(
        store.insert_snapshot(&snapshot(3), SnapshotBounds { bytes: 0, ..wider }).await.unwrap(),
        NewSnapshot::Done
    );
    forget_all(store).await;
}

async fn the_bound_of_one_owner_is_that_of_no_other(store: &dyn Store) {
    let bounds = SnapshotBounds { per_owner: 1, ..FREE };
    let of = |n, owner: Option<&str>| Snapshot { owner: owner.map(|it| OwnerId::parse(it).unwrap()), ..snapshot(n) };
    for (n, owner, expected) in [
        (1, Some("anna"), NewSnapshot::Done),
        (2, Some("anna"), NewSnapshot::TooManyOfOwner),
        (3, Some("ben"), NewSnapshot::Done),
        (4, None, NewSnapshot::Done),
        (5, None, NewSnapshot::Done),
    ] {
        assert_eq!(store.insert_snapshot(&of(n, owner), bounds).await.unwrap(), expected, "{n}");
    }
    let temporary = Snapshot { is_temporary: true, ..of(6, Some("anna")) };
    assert_eq!(store.insert_snapshot(&temporary, bounds).await.unwrap(), NewSnapshot::Done);
    forget_all(store).await;
}
