//! Cases on places in shared boxes.

use std::time::Duration;

use domain::{Caps, Denial, SandboxId};
use futures_util::future::join_all;

use super::workers::placement;
use super::{requested, start};
use crate::clock::after;
use crate::{Admitted, Change, NewSandbox, PoolBounds, PoolCounts, PoolPlace, Sandbox, Store};

pub(super) async fn run(store: &dyn Store) {
    the_fullest_box_that_fits_is_filled_first(store).await;
    many_at_once_never_get_past_a_bound(store).await;
    an_owner_of_many_sizes_leaves_boxes_to_others(store).await;
    who_is_not_admitted_has_no_place(store).await;
    a_box_closes_with_its_last_place_and_stays_closed(store).await;
    places_without_a_live_sandbox_are_strays(store).await;
    a_box_lives_as_long_as_its_longest_sandbox(store).await;
    assert_eq!(store.pool_counts().await.unwrap(), PoolCounts::default(), "nothing is left");
}

const BOUNDS: PoolBounds = PoolBounds { hosts_max: 2, places: 2 };

/// Returns an id that no other case uses.
fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n, 1, 1, 1, 1, 1, 1, 1, 1, 1])
}

/// Returns the id of a box, apart from those of sandboxes.
fn host_id(n: u8) -> SandboxId {
    id(200 + n)
}

fn sandbox(n: u8) -> Sandbox {
    Sandbox { id: id(n), ..super::sandbox(n, None) }
}

async fn end(store: &dyn Store, ids: impl IntoIterator<Item = u8>) {
    for n in ids {
        store.apply(&id(n), requested()).await.unwrap();
        store.apply(&id(n), Change::Stopped { at: start() }).await.unwrap();
    }
}

/// Admits a sandbox. Returns the box that it has a place in.
async fn place(store: &dyn Store, mut sandbox: Sandbox, new: u8) -> Option<SandboxId> {
    sandbox.created_at = after(start(), Duration::from_secs(u64::from(new)));
    let pool = Some(PoolPlace { bounds: BOUNDS, new_host: host_id(new) });
    let id = sandbox.id.clone();
    let lacks_place = store.lacks_place(&sandbox, BOUNDS).await.unwrap();
    match store
        .admit(&NewSandbox {
            egress: domain::SandboxEgress::default(),
            sandbox,
            caps: Caps::default(),
            key: None,
            placement: placement(),
            pool,
        })
        .await
        .unwrap()
    {
        Admitted::Yes(_) => Some(store.host_of(&id).await.unwrap().unwrap().id),
        Admitted::Denied(denial @ (Denial::PoolFull | Denial::PoolShare), _) => {
            assert!(lacks_place == Some(denial) && store.sandbox(&id).await.unwrap().is_none());
            None
        }
        other @ (Admitted::Denied(..) | Admitted::KeyTaken | Admitted::NoWorker) => panic!("{other:?}"),
    }
}

/// Ends sandboxes, gives their places back, and deletes boxes that are then empty.
async fn leave(store: &dyn Store, slots: impl IntoIterator<Item = u8> + Clone) {
    end(store, slots.clone()).await;
    for n in slots {
        if let Some(host) = store.leave(&id(n)).await.unwrap() {
            store.forget_host(&host).await.unwrap();
        }
    }
    // The next case can then use the same ids.
    store.purge_ended(after(start(), Duration::from_secs(1)), start()).await.unwrap();
}

async fn the_fullest_box_that_fits_is_filled_first(store: &dyn Store) {
    let one = sandbox(101);
    assert_eq!(place(store, one.clone(), 1).await, Some(host_id(1)));
    let first = store.host_of(&id(101)).await.unwrap().unwrap();
    assert_eq!((&first.id, first.is_open, first.places), (&host_id(1), true, 2));
    assert_eq!((&first.provider, &first.image, first.resources), (&one.provider, &one.image, one.resources));
    assert_eq!(store.host_of(&id(102)).await.unwrap(), None);

    let mut larger = sandbox(102);
    larger.resources.memory_mb += 1;
    assert_eq!(place(store, larger, 2).await, Some(host_id(2)), "another size, another box");
    assert_eq!(place(store, sandbox(103), 3).await, Some(host_id(1)));
    // The first box is full, the second has another size, and a third exceeds the bound.
    assert_eq!(place(store, sandbox(104), 4).await, None);
    let mut elsewhere = sandbox(104);
    elsewhere.provider = "native".to_owned();
    assert_eq!(place(store, elsewhere, 4).await, None);
    assert_eq!(store.pool_counts().await.unwrap(), PoolCounts { hosts: 2, slots: 3 });
    let hosts = store.pool_hosts().await.unwrap();
    assert_eq!(hosts.iter().map(|host| &host.id).collect::<Vec<_>>(), [&host_id(1), &host_id(2)]);
    leave(store, [101]).await;
    assert_eq!(place(store, sandbox(104), 4).await, Some(host_id(1)), "a place that is free is taken");
    leave(store, [102, 103, 104]).await;
}

async fn many_at_once_never_get_past_a_bound(store: &dyn Store) {
    let asked = (1..=10u8).map(|n| {
        let pool = Some(PoolPlace { bounds: BOUNDS, new_host: host_id(n) });
        NewSandbox {
            egress: domain::SandboxEgress::default(),
            sandbox: sandbox(100 + n),
            caps: Caps::default(),
            key: None,
            placement: placement(),
            pool,
        }
    });
    let asked: Vec<NewSandbox> = asked.collect();
    let admitted = join_all(asked.iter().map(|new| store.admit(new))).await;
    assert_eq!(admitted.iter().filter(|one| matches!(one, Ok(Admitted::Yes(_)))).count(), 4);
    assert_eq!(store.pool_counts().await.unwrap(), PoolCounts { hosts: 2, slots: 4 });
    leave(store, 101..=110).await;
}

async fn an_owner_of_many_sizes_leaves_boxes_to_others(store: &dyn Store) {
    let bounds = PoolBounds { hosts_max: 10, places: 2 };
    let of = |n: u8, owner: &str, size: u32| {
        let mut sandbox = Sandbox { id: id(n), ..super::sandbox(n, Some(owner)) };
        sandbox.resources.memory_mb = size;
        sandbox
    };
    let place = async |sandbox: Sandbox| {
        let new_host = host_id(u8::try_from(sandbox.resources.memory_mb).unwrap());
        let expected = store.lacks_place(&sandbox, bounds).await.unwrap();
        let pool = Some(PoolPlace { bounds, new_host });
        let new = NewSandbox {
            egress: domain::SandboxEgress::default(),
            sandbox,
            caps: Caps::default(),
            key: None,
            placement: placement(),
            pool,
        };
        match store.admit(&new).await.unwrap() {
            Admitted::Yes(_) => assert_eq!(expected, None),
            Admitted::Denied(denial, _) => assert_eq!(expected, Some(denial)),
            other @ (Admitted::KeyTaken | Admitted::NoWorker) => panic!("{other:?}"),
        }
        expected
    };
    let share = Some(Denial::PoolShare);
    for n in 0..5 {
        assert_eq!(place(of(101 + n, "greedy", u32::from(n))).await, None, "box {n}");
    }
    assert_eq!(place(of(106, "greedy", 5)).await, share, "half of the boxes for one owner alone");
    // Boxes that are full or hold other owners too do not count against the owner.
    assert_eq!(place(of(107, "greedy", 0)).await, None);
    assert_eq!(place(of(108, "second", 1)).await, None);
    assert_eq!(place(of(109, "greedy", 6)).await, None);
    assert_eq!(place(of(110, "greedy", 7)).await, share);
    for n in 0..2 {
        assert_eq!(place(of(111 + n, "second", 10 + u32::from(n))).await, None);
    }
    assert_eq!(place(of(113, "second", 12)).await, share);
    assert_eq!(place(of(114, "honest", 20)).await, None, "there is a box for who has none");
    assert_eq!(store.pool_counts().await.unwrap().hosts, 9);
    leave(store, [101, 102, 103, 104, 105, 107, 108, 109, 111, 112, 114]).await;
}

async fn who_is_not_admitted_has_no_place(store: &dyn Store) {
    let caps = Caps { max_sandboxes: 1, max_sandboxes_per_owner: 0 };
    for n in [101, 102] {
        let pool = Some(PoolPlace { bounds: BOUNDS, new_host: host_id(n - 100) });
        store
            .admit(&NewSandbox {
                egress: domain::SandboxEgress::default(),
                sandbox: sandbox(n),
                caps,
                key: None,
                placement: placement(),
                pool,
            })
            .await
            .unwrap();
    }
    assert_eq!(store.pool_counts().await.unwrap(), PoolCounts { hosts: 1, slots: 1 });
    leave(store, [101, 102]).await;
}

async fn a_box_closes_with_its_last_place_and_stays_closed(store: &dyn Store) {
    for n in [101, 102] {
        place(store, sandbox(n), 1).await.unwrap();
    }
    assert_eq!(store.leave(&id(101)).await.unwrap(), None, "one is left");
    store.forget_host(&host_id(1)).await.unwrap();
    assert!(store.host_of(&id(102)).await.unwrap().is_some(), "a box in use is not forgotten");
    assert_eq!(store.leave(&id(102)).await.unwrap(), Some(host_id(1)));
    assert_eq!(store.leave(&id(102)).await.unwrap(), None, "again is nothing");
    // The box is being removed, and counts until it is gone.
    assert_eq!(place(store, sandbox(103), 2).await, Some(host_id(2)));
    let closed = store.pool_hosts().await.unwrap();
    assert_eq!(closed.iter().map(|host| host.is_open).collect::<Vec<_>>(), [false, true]);
    let mut other = sandbox(104);
    other.resources.vcpus += 1;
    assert_eq!(place(store, other.clone(), 3).await, None);
    store.forget_host(&host_id(1)).await.unwrap();
    assert_eq!(place(store, other, 3).await, Some(host_id(3)));
    leave(store, 101..=104).await;
}

async fn places_without_a_live_sandbox_are_strays(store: &dyn Store) {
    for n in [101, 102, 103] {
        place(store, sandbox(n), n - 100).await.unwrap();
    }
    assert_eq!(store.pool_strays(10).await.unwrap(), []);
    end(store, [102, 103]).await;
    let mut strays = store.pool_strays(10).await.unwrap();
    strays.sort_by_key(|(slot, _)| *slot != id(102));
    assert_eq!(strays, [(id(102), "mock".to_owned()), (id(103), "mock".to_owned())]);
    assert_eq!(store.pool_strays(1).await.unwrap().len(), 1);
    leave(store, [101, 102, 103]).await;
}

async fn a_box_lives_as_long_as_its_longest_sandbox(store: &dyn Store) {
    assert_eq!(store.host_expires_at(&host_id(1)).await.unwrap(), None);
    for (n, secs) in [(101, 50), (102, 500)] {
        let mut sandbox = sandbox(n);
        sandbox.expires_at = after(start(), Duration::from_secs(secs));
        place(store, sandbox.clone(), 1).await.unwrap();
        assert_eq!(store.host_expires_at(&host_id(1)).await.unwrap(), Some(sandbox.expires_at));
    }
    end(store, [102]).await;
    let left = Some(after(start(), Duration::from_secs(50)));
    assert_eq!(store.host_expires_at(&host_id(1)).await.unwrap(), left);
    leave(store, [101, 102]).await;
}
