//! Cases on keys of owners.

use std::time::{Duration, Instant};

use domain::{KeyScope, KeyScopes, OwnerId, OwnerKeyId, Timestamp};

use crate::clock::from_ms;
use crate::{KeyInserted, OwnerKey, Store};

/// Number of keys of a large installation.
const MANY: u16 = 10_000;

pub(super) async fn run(store: &dyn Store) {
    a_key_is_read_back_as_it_was_written(store).await;
    a_key_is_revoked_once(store).await;
    the_last_use_only_rises(store).await;
    keys_that_have_ended_are_purged_and_no_other(store).await;
    a_full_table_gives_up_the_key_that_ended_first(store).await;
    ten_thousand_keys_are_stored_read_and_used(store).await;
}

fn id(n: u16) -> OwnerKeyId {
    let [high, low] = n.to_be_bytes();
    OwnerKeyId::from_entropy([high, low, 0, 0, 0, 0, 0, 0, 0, 0])
}

fn at(s: i64) -> Timestamp {
    from_ms(s * 1000)
}

fn key(n: u16) -> OwnerKey {
    let mut hash = [7; 32];
    hash[..2].copy_from_slice(&n.to_be_bytes());
    OwnerKey {
        id: id(n),
        name: None,
        owner: OwnerId::parse("ann").unwrap(),
        scopes: KeyScopes::default(),
        hash,
        prefix: format!("tbx_{n:08}"),
        created_at: at(100),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    }
}

async fn insert(store: &dyn Store, key: &OwnerKey) {
    assert_eq!(store.insert_key(key, u64::MAX).await.unwrap(), KeyInserted::Done { displaced: None });
}

/// Returns every key, read in parts.
async fn all(store: &dyn Store) -> Vec<OwnerKey> {
    let mut all: Vec<OwnerKey> = Vec::new();
    loop {
        let part = store.keys(all.last().map(|key| &key.id), 1000).await.unwrap();
        if part.is_empty() {
            return all;
        }
        all.extend(part);
    }
}

async fn clear(store: &dyn Store) {
    for key in all(store).await {
        store.revoke_key(&key.id, at(0)).await.unwrap();
    }
    store.purge_keys(Timestamp::MAX).await.unwrap();
    assert!(all(store).await.is_empty());
}

async fn a_key_is_read_back_as_it_was_written(store: &dyn Store) {
    let plain = key(1);
    let full = OwnerKey {
        name: Some("build \"7\" ü".to_owned()),
        owner: OwnerId::parse("团队-7").unwrap(),
        scopes: KeyScope::ALL.into_iter().collect(),
        expires_at: Some(at(500)),
        revoked_at: Some(at(400)),
        last_used_at: Some(at(300)),
        ..key(2)
    };
    insert(store, &full).await;
    insert(store, &plain).await;
    assert_eq!(all(store).await, [plain.clone(), full.clone()]);
    assert_eq!(store.keys(Some(&plain.id), 9).await.unwrap(), [full]);
    assert_eq!(store.keys(None, 1).await.unwrap(), std::slice::from_ref(&plain));
    let same_hash = OwnerKey { id: id(3), ..plain };
    assert!(store.insert_key(&same_hash, u64::MAX).await.is_err(), "two keys never have one hash");
    clear(store).await;
}

async fn a_key_is_revoked_once(store: &dyn Store) {
    insert(store, &key(1)).await;
    let revoked = store.revoke_key(&id(1), at(200)).await.unwrap().unwrap();
    assert_eq!(revoked.revoked_at, Some(at(200)));
    assert_eq!(store.revoke_key(&id(1), at(300)).await.unwrap(), Some(revoked), "the first time stays");
    assert_eq!(store.revoke_key(&id(2), at(300)).await.unwrap(), None);
    clear(store).await;
}

async fn the_last_use_only_rises(store: &dyn Store) {
    insert(store, &key(1)).await;
    insert(store, &key(2)).await;
    for (noted, expected) in [(200, 200), (150, 200), (300, 300)] {
        store.note_key_uses(&[(id(1), at(noted)), (id(9), at(noted))]).await.unwrap();
        assert_eq!(all(store).await[0].last_used_at, Some(at(expected)));
    }
    assert_eq!(all(store).await[1].last_used_at, None);
    store.note_key_uses(&[]).await.unwrap();
    clear(store).await;
}

async fn keys_that_have_ended_are_purged_and_no_other(store: &dyn Store) {
    let ends = |n, expires: Option<i64>, revoked: Option<i64>| OwnerKey {
        expires_at: expires.map(at),
        revoked_at: revoked.map(at),
        ..key(n)
    };
    for key in [
        ends(1, None, None),
        ends(2, Some(200), None),
        ends(3, None, Some(200)),
        ends(4, Some(900), Some(200)),
        ends(5, Some(200), Some(900)),
        ends(6, Some(900), Some(901)),
        ends(7, Some(300), None),
    ] {
        insert(store, &key).await;
    }
    let mut purged = store.purge_keys(at(300)).await.unwrap();
    purged.sort();
    assert_eq!(purged, [2, 3, 4, 5].map(id));
    assert_eq!(all(store).await.into_iter().map(|key| key.id).collect::<Vec<_>>(), [1, 6, 7].map(id));
    assert!(store.purge_keys(at(300)).await.unwrap().is_empty());
    clear(store).await;
}

async fn a_full_table_gives_up_the_key_that_ended_first(store: &dyn Store) {
    insert(store, &key(1)).await;
    insert(store, &OwnerKey { expires_at: Some(at(50)), ..key(2) }).await;
    insert(store, &OwnerKey { revoked_at: Some(at(40)), ..key(3) }).await;
    insert(store, &OwnerKey { expires_at: Some(at(101)), ..key(4) }).await;
    let displaced = |n| KeyInserted::Done { displaced: Some(id(n)) };
    assert_eq!(store.insert_key(&key(5), 4).await.unwrap(), displaced(3));
    assert_eq!(store.insert_key(&key(6), 4).await.unwrap(), displaced(2));
    assert_eq!(store.insert_key(&key(7), 4).await.unwrap(), KeyInserted::Full, "every other key can still be used");
    assert_eq!(all(store).await.len(), 4);
    clear(store).await;
}

async fn ten_thousand_keys_are_stored_read_and_used(store: &dyn Store) {
    for n in 0..MANY {
        insert(store, &key(n)).await;
    }
    let started = Instant::now();
    assert_eq!(all(store).await.len(), usize::from(MANY));
    let read = started.elapsed();
    let uses: Vec<_> = (0..MANY).map(|n| (id(n), at(200))).collect();
    store.note_key_uses(&uses).await.unwrap();
    let used = started.elapsed() - read;
    assert!(all(store).await.iter().all(|key| key.last_used_at == Some(at(200))));
    // Generous, since the machine has other work too.
    assert!(read.max(used) < Duration::from_secs(5), "read in {read:?}, used in {used:?}");
    clear(store).await;
}
