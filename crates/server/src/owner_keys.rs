//! Keys of owners, in memory: every request with such a key is checked here, and none asks the store.
//!
//! The table holds each key that the store has. It is read at the start and follows each change.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use domain::{KeyScopes, OwnerId, OwnerKeyId, Timestamp};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use store::OwnerKey as Row;
use store::clock::{Clock, from_ms};
use tokio_util::sync::CancellationToken;

/// Time of the last use of a key that was never used, in milliseconds.
const NEVER: i64 = i64::MIN;

/// A key that requests may hold.
#[derive(Debug)]
pub struct OwnerKey {
    row: Row,
    /// Cancelled once the key is revoked or has expired. It stays so, even if the clock is set back.
    ended: CancellationToken,
    uses: Arc<Uses>,
}

/// Times of the last use of a key, in milliseconds since 1970-01-01 UTC.
#[derive(Debug)]
struct Uses {
    last: AtomicI64,
    stored: AtomicI64,
}

impl PartialEq for OwnerKey {
    fn eq(&self, other: &Self) -> bool {
        self.row.id == other.row.id
    }
}

impl Eq for OwnerKey {}

impl OwnerKey {
    fn new(row: Row) -> Self {
        let last = row.last_used_at.map_or(NEVER, Timestamp::as_millisecond);
        let uses = Arc::new(Uses { last: AtomicI64::new(last), stored: AtomicI64::new(last) });
        Self { row, ended: CancellationToken::new(), uses }
    }

    /// Returns the id, which may be shown.
    #[must_use]
    pub fn id(&self) -> &OwnerKeyId {
        &self.row.id
    }

    /// Returns the owner that the holder acts as.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.row.owner
    }

    /// Returns what the key opens.
    #[must_use]
    pub fn scopes(&self) -> &KeyScopes {
        &self.row.scopes
    }

    /// Returns the time at which the key expires.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.row.expires_at
    }

    /// Returns the token that is cancelled when the key ends.
    #[must_use]
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Notes a request with the key.
    pub fn note_use(&self, now: Timestamp) {
        self.uses.last.fetch_max(now.as_millisecond(), Ordering::Relaxed);
    }

    /// Returns the row with the last use, which may not be stored yet.
    fn row(&self) -> Row {
        let last = self.uses.last.load(Ordering::Relaxed);
        Row { last_used_at: (last != NEVER).then(|| from_ms(last)), ..self.row.clone() }
    }
}

/// Key that a request holds.
#[derive(Debug, Clone)]
pub enum Found {
    /// A key in force.
    Valid(Arc<OwnerKey>),
    /// A key that was revoked.
    Revoked(Arc<OwnerKey>),
    /// A key that has expired.
    Expired(Arc<OwnerKey>),
}

/// Position in the list of keys.
pub type KeyCursor = (Timestamp, OwnerKeyId);

/// Every key of an owner.
pub struct OwnerKeys {
    table: RwLock<Table>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Table {
    by_hash: HashMap<[u8; 32], Arc<OwnerKey>>,
    by_id: HashMap<OwnerKeyId, Arc<OwnerKey>>,
    /// Keys in the order of their creation.
    by_age: BTreeMap<KeyCursor, Arc<OwnerKey>>,
}

impl fmt::Debug for OwnerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerKeys").field("keys", &self.table.read().by_id.len()).finish_non_exhaustive()
    }
}

impl Table {
    fn insert(&mut self, key: Arc<OwnerKey>) {
        let row = &key.row;
        self.by_age.insert((row.created_at, row.id.clone()), Arc::clone(&key));
        self.by_id.insert(row.id.clone(), Arc::clone(&key));
        self.by_hash.insert(row.hash, key);
    }

    fn remove(&mut self, id: &OwnerKeyId) {
        let Some(key) = self.by_id.remove(id) else { return };
        self.by_hash.remove(&key.row.hash);
        self.by_age.remove(&(key.row.created_at, key.row.id.clone()));
        key.ended.cancel();
    }
}

/// Returns the hash by which a key is stored and found.
#[must_use]
pub fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl OwnerKeys {
    /// Creates an empty table.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { table: RwLock::default(), clock }
    }

    /// Finds a key by its hash.
    ///
    /// The look-up takes no constant time, and need not: what it compares is a digest of 256 bits that the caller
    /// cannot choose piece by piece, and the key itself has 160 random bits.
    #[must_use]
    pub fn find(&self, hash: &[u8; 32]) -> Option<Found> {
        let key = self.table.read().by_hash.get(hash).cloned()?;
        let has_expired = key.row.expires_at.is_some_and(|expires| expires <= self.clock.now());
        Some(if key.row.revoked_at.is_some() {
            Found::Revoked(key)
        } else if has_expired || key.ended.is_cancelled() {
            Found::Expired(key)
        } else {
            Found::Valid(key)
        })
    }

    /// Adds keys of the store.
    pub fn insert(&self, rows: impl IntoIterator<Item = Row>) {
        let mut table = self.table.write();
        for row in rows {
            let key = OwnerKey::new(row);
            if key.row.revoked_at.is_some() {
                key.ended.cancel();
            }
            table.insert(Arc::new(key));
        }
    }

    /// Replaces a key by its revoked row, and ends what goes on with it.
    pub fn revoke(&self, row: Row) {
        let mut table = self.table.write();
        let Some(before) = table.by_id.get(&row.id).cloned() else { return };
        let (ended, uses) = (before.ended.clone(), Arc::clone(&before.uses));
        table.insert(Arc::new(OwnerKey { row, ended: ended.clone(), uses }));
        ended.cancel();
    }

    /// Removes keys that the store no longer has.
    pub fn remove<'a>(&self, ids: impl IntoIterator<Item = &'a OwnerKeyId>) {
        let mut table = self.table.write();
        ids.into_iter().for_each(|id| table.remove(id));
    }

    /// Ends what goes on with keys that have expired.
    pub fn end_expired(&self) {
        let now = self.clock.now();
        for key in self.table.read().by_id.values() {
            if key.row.expires_at.is_some_and(|expires| expires <= now) {
                key.ended.cancel();
            }
        }
    }

    /// Returns keys of `owner` or of all owners, newest first: those after `after`, at most `limit`.
    #[must_use]
    pub fn page(&self, owner: Option<&OwnerId>, after: Option<KeyCursor>, limit: usize) -> Vec<Row> {
        let end = after.map_or(Bound::Unbounded, Bound::Excluded);
        let table = self.table.read();
        let older = table.by_age.range((Bound::Unbounded, end)).rev().map(|(_, key)| key);
        let of_owner = older.filter(|key| owner.is_none_or(|owner| key.row.owner == *owner));
        of_owner.take(limit).map(|key| key.row()).collect()
    }

    /// Returns the uses that are not stored yet.
    #[must_use]
    pub fn unstored_uses(&self) -> Vec<(OwnerKeyId, Timestamp)> {
        let table = self.table.read();
        let used = table.by_id.values().filter_map(|key| {
            let last = key.uses.last.load(Ordering::Relaxed);
            (last > key.uses.stored.load(Ordering::Relaxed)).then(|| (key.row.id.clone(), from_ms(last)))
        });
        used.collect()
    }

    /// Notes that these uses were stored.
    pub fn uses_were_stored(&self, uses: &[(OwnerKeyId, Timestamp)]) {
        let table = self.table.read();
        for (id, at) in uses {
            if let Some(key) = table.by_id.get(id) {
                key.uses.stored.fetch_max(at.as_millisecond(), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod test;
