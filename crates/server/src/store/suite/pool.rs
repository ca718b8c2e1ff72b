//! Places in shared boxes.

use std::time::Duration;

use domain::SandboxId;
use futures_util::future::join_all;

use super::{admit, end, id, sandbox, start};
use crate::clock::after;
use crate::store::{PoolBounds, PoolCounts, PoolHost, Sandbox, Store, Wanted};

pub(super) async fn run(store: &dyn Store) {
    the_fullest_box_that_fits_is_filled_first(store).await;
    many_at_once_never_get_past_a_bound(store).await;
    a_box_closes_with_its_last_place_and_stays_closed(store).await;
    places_without_a_live_sandbox_are_strays(store).await;
    a_box_lives_as_long_as_its_longest_sandbox(store).await;
    assert_eq!(store.pool_counts().await.unwrap(), PoolCounts::default(), "nothing is left");
}

const BOUNDS: PoolBounds = PoolBounds { hosts_max: 2, places: 2 };

/// Ids of boxes lie apart from those of sandboxes.
fn host_id(n: u8) -> SandboxId {
    id(200 + n)
}

fn wanted(sandbox: &Sandbox) -> Wanted<'_> {
    Wanted { slot: &sandbox.id, provider: &sandbox.provider, image: &sandbox.image, resources: sandbox.resources }
}

async fn place(store: &dyn Store, sandbox: &Sandbox, new: u8) -> Option<PoolHost> {
    let later = after(start(), Duration::from_secs(u64::from(new)));
    store.place(&wanted(sandbox), BOUNDS, &host_id(new), later).await.unwrap()
}

/// Gives places back, and forgets boxes that are empty then.
async fn leave(store: &dyn Store, slots: impl IntoIterator<Item = u8>) {
    for n in slots {
        if let Some(host) = store.leave(&id(n)).await.unwrap() {
            store.forget_host(&host).await.unwrap();
        }
    }
}

async fn the_fullest_box_that_fits_is_filled_first(store: &dyn Store) {
    let one = sandbox(1, None);
    let first = place(store, &one, 1).await.unwrap();
    assert_eq!((&first.id, first.is_open, first.places), (&host_id(1), true, 2));
    assert_eq!((&first.provider, &first.image, first.resources), (&one.provider, &one.image, one.resources));
    assert_eq!(place(store, &one, 9).await, Some(first.clone()), "who has a place keeps it");
    assert_eq!(store.host_of(&id(1)).await.unwrap(), Some(first.clone()));
    assert_eq!(store.host_of(&id(2)).await.unwrap(), None);

    let mut larger = sandbox(2, None);
    larger.resources.memory_mb += 1;
    assert_eq!(place(store, &larger, 2).await.unwrap().id, host_id(2), "another size, another box");
    assert_eq!(place(store, &sandbox(3, None), 3).await.unwrap().id, host_id(1));
    // The first is full, the second has another size, and there may be no third.
    assert_eq!(place(store, &sandbox(4, None), 4).await, None);
    let mut elsewhere = sandbox(4, None);
    elsewhere.provider = "native".to_owned();
    assert_eq!(place(store, &elsewhere, 4).await, None);
    assert_eq!(store.pool_counts().await.unwrap(), PoolCounts { hosts: 2, slots: 3 });
    assert_eq!(
        store.pool_hosts().await.unwrap().iter().map(|host| &host.id).collect::<Vec<_>>(),
        [&host_id(1), &host_id(2)]
    );
    leave(store, [1]).await;
    assert_eq!(place(store, &sandbox(4, None), 4).await.unwrap().id, host_id(1), "a place that is free is taken");
    leave(store, [2, 3, 4]).await;
}

async fn many_at_once_never_get_past_a_bound(store: &dyn Store) {
    let sandboxes: Vec<Sandbox> = (1..=10).map(|n| sandbox(n, None)).collect();
    let placed = join_all((1..).zip(&sandboxes).map(|(n, sandbox)| place(store, sandbox, n))).await;
    assert_eq!(placed.iter().flatten().count(), 4);
    assert_eq!(store.pool_counts().await.unwrap(), PoolCounts { hosts: 2, slots: 4 });
    leave(store, 1..=10).await;
}

async fn a_box_closes_with_its_last_place_and_stays_closed(store: &dyn Store) {
    for n in [1, 2] {
        place(store, &sandbox(n, None), 1).await.unwrap();
    }
    assert_eq!(store.leave(&id(1)).await.unwrap(), None, "one is left");
    store.forget_host(&host_id(1)).await.unwrap();
    assert!(store.host_of(&id(2)).await.unwrap().is_some(), "a box in use is not forgotten");
    assert_eq!(store.leave(&id(2)).await.unwrap(), Some(host_id(1)));
    assert_eq!(store.leave(&id(2)).await.unwrap(), None, "again is nothing");
    // It is being removed, and counts until it is gone.
    assert_eq!(place(store, &sandbox(3, None), 2).await.unwrap().id, host_id(2));
    let closed = store.pool_hosts().await.unwrap();
    assert_eq!(closed.iter().map(|host| host.is_open).collect::<Vec<_>>(), [false, true]);
    let mut other = sandbox(4, None);
    other.resources.vcpus += 1;
    assert_eq!(place(store, &other, 3).await, None);
    store.forget_host(&host_id(1)).await.unwrap();
    assert_eq!(place(store, &other, 3).await.unwrap().id, host_id(3));
    leave(store, [3, 4]).await;
}

async fn places_without_a_live_sandbox_are_strays(store: &dyn Store) {
    for n in [1, 2, 3] {
        place(store, &sandbox(n, None), n).await.unwrap();
    }
    for n in [1, 2] {
        admit(store, &sandbox(n, None)).await;
    }
    end(store, [2]).await;
    let strays = store.pool_strays(10).await.unwrap();
    assert_eq!(strays, [(id(2), "mock".to_owned()), (id(3), "mock".to_owned())]);
    assert_eq!(store.pool_strays(1).await.unwrap().len(), 1);
    end(store, [1]).await;
    leave(store, [1, 2, 3]).await;
    forget_rows(store).await;
}

async fn a_box_lives_as_long_as_its_longest_sandbox(store: &dyn Store) {
    assert_eq!(store.host_expires_at(&host_id(1)).await.unwrap(), None);
    for (n, secs) in [(1, 50), (2, 500)] {
        let mut sandbox = sandbox(n, None);
        sandbox.expires_at = after(start(), Duration::from_secs(secs));
        place(store, &sandbox, 1).await.unwrap();
        admit(store, &sandbox).await;
        assert_eq!(store.host_expires_at(&host_id(1)).await.unwrap(), Some(sandbox.expires_at));
    }
    end(store, [2]).await;
    let left = Some(after(start(), Duration::from_secs(50)));
    assert_eq!(store.host_expires_at(&host_id(1)).await.unwrap(), left);
    end(store, [1]).await;
    leave(store, [1, 2]).await;
    forget_rows(store).await;
}

/// So that the next case can have the same ids.
async fn forget_rows(store: &dyn Store) {
    store.purge_ended(after(start(), Duration::from_secs(1))).await.unwrap();
}
