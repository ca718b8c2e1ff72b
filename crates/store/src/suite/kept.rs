//! Cases on the bounds on rows of ended sandboxes.

use domain::{OwnerId, SandboxId, State, Timestamp};

use super::{admit, id, requested, sandbox, start};
use crate::clock::from_ms;
use crate::{Change, Kept, KeptRows, Store};

/// Bounds of the store that the cases run on.
pub(crate) const KEPT: Kept =
    Kept { failed: KeptRows { total: 6, per_owner: 3 }, destroyed: KeptRows { total: 6, per_owner: 3 } };

/// Runs every case on an empty store.
pub(crate) async fn run(store: &dyn Store) {
    super::workers::here(store).await;
    for state in [State::Failed, State::Destroyed] {
        an_owner_keeps_its_newest_and_takes_none_of_the_others(store, state).await;
        the_owner_with_the_most_makes_way_for_all_together(store, state).await;
        many_names_leave_each_owner_its_newest(store, state).await;
        those_without_an_owner_share_one_part(store, state).await;
    }
    what_leaves_a_state_is_not_counted_there(store).await;
}

/// Checks that a store filled by [`fill_beyond`] shrinks to its bounds after they were lowered.
pub(crate) async fn a_bound_that_was_lowered_is_reached(store: &dyn Store) {
    assert_eq!(store.purge_ended(from_ms(0), start()).await.unwrap(), 13);
    let left: Vec<SandboxId> = kept(store, 0..16).await;
    assert_eq!(left, [id(13), id(14), id(15)], "its newest are left");
}

/// Fills a store with wide bounds.
pub(crate) async fn fill_beyond(store: &dyn Store) {
    super::workers::here(store).await;
    for n in 0..16 {
        end(store, n, Some("ann"), State::Failed).await;
    }
}

fn at(n: u8) -> Timestamp {
    from_ms(start().as_millisecond() + i64::from(n))
}

/// Creates a sandbox that ends in `state`; a higher `n` ends later.
async fn end(store: &dyn Store, n: u8, owner: Option<&str>, state: State) {
    admit(store, &sandbox(n, owner)).await;
    if state == State::Failed {
        store.apply(&id(n), Change::Broke { error: "x".into(), at: at(n) }).await.unwrap();
    } else {
        store.apply(&id(n), requested()).await.unwrap();
        store.apply(&id(n), Change::Stopped { at: at(n) }).await.unwrap();
    }
}

/// Returns the sandboxes of `numbers` whose rows are kept.
async fn kept(store: &dyn Store, numbers: impl IntoIterator<Item = u8>) -> Vec<SandboxId> {
    let mut kept = Vec::new();
    for n in numbers {
        kept.extend(store.sandbox(&id(n)).await.unwrap().map(|row| row.id));
    }
    kept
}

async fn forget_all(store: &dyn Store) {
    store.purge_ended(from_ms(i64::MAX), start()).await.unwrap();
    let counts = store.counts().await.unwrap();
    assert!(counts.by_state.is_empty(), "{counts:?}");
}

async fn an_owner_keeps_its_newest_and_takes_none_of_the_others(store: &dyn Store, state: State) {
    end(store, 0, Some("honest"), state).await;
    for n in 1..=20 {
        end(store, n, Some("flood"), state).await;
    }
    assert_eq!(kept(store, 0..=20).await, [id(0), id(18), id(19), id(20)]);
    forget_all(store).await;
}

async fn the_owner_with_the_most_makes_way_for_all_together(store: &dyn Store, state: State) {
    for (n, owner) in [(0, "a"), (1, "b"), (2, "b"), (3, "b"), (4, "c"), (5, "d"), (6, "e"), (7, "f")] {
        end(store, n, Some(owner), state).await;
    }
    assert_eq!(kept(store, 0..=7).await, [id(0), id(3), id(4), id(5), id(6), id(7)]);
    forget_all(store).await;
}

async fn many_names_leave_each_owner_its_newest(store: &dyn Store, state: State) {
    for n in 0..3 {
        end(store, n, Some("honest"), state).await;
    }
    for n in 10..15 {
        end(store, n, Some(&format!("name-{n}")), state).await;
    }
    assert_eq!(kept(store, 0..3).await, [id(2)]);
    // With more owners than rows, the oldest row of all is deleted.
    for n in 15..20 {
        end(store, n, Some(&format!("name-{n}")), state).await;
    }
    assert_eq!(kept(store, 0..20).await, [id(14), id(15), id(16), id(17), id(18), id(19)]);
    forget_all(store).await;
}

async fn those_without_an_owner_share_one_part(store: &dyn Store, state: State) {
    end(store, 0, Some("honest"), state).await;
    for n in 1..=20 {
        end(store, n, None, state).await;
    }
    assert_eq!(kept(store, 0..=20).await, [id(0), id(16), id(17), id(18), id(19), id(20)]);
    forget_all(store).await;
}

async fn what_leaves_a_state_is_not_counted_there(store: &dyn Store) {
    let honest = OwnerId::parse("honest").unwrap();
    for n in 0..3 {
        end(store, n, Some(honest.as_str()), State::Failed).await;
        store.apply(&id(n), requested()).await.unwrap();
        store.apply(&id(n), Change::Stopped { at: at(n) }).await.unwrap();
    }
    for n in 3..6 {
        end(store, n, Some(honest.as_str()), State::Failed).await;
    }
    assert_eq!(kept(store, 0..6).await.len(), 6, "three of each state");
    forget_all(store).await;
}
