//! Keys of owners, as stored: as hashes.

use std::fmt;

use async_trait::async_trait;
use domain::{KeyScopes, OwnerId, OwnerKeyId, Timestamp};

use super::error::Result;

/// A key of an owner, as stored. The key itself is nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnerKey {
    pub id: OwnerKeyId,
    /// Name for people; need not be unique.
    pub name: Option<String>,
    /// Owner that the holder of the key acts as.
    pub owner: OwnerId,
    pub scopes: KeyScopes,
    /// SHA-256 of the key; no two rows have the same.
    pub hash: [u8; 32],
    /// First characters of the key, by which people recognize it.
    pub prefix: String,
    pub created_at: Timestamp,
    /// Time from which the key opens nothing; `None` for a key without an end.
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// Time of the last request with the key, as far as it was stored.
    pub last_used_at: Option<Timestamp>,
}

impl fmt::Debug for OwnerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerKey").field("id", &self.id).field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl OwnerKey {
    /// Returns the time from which the key opens nothing, whether it has come or not.
    #[must_use]
    pub fn ends_at(&self) -> Option<Timestamp> {
        match (self.revoked_at, self.expires_at) {
            (Some(revoked), Some(expires)) => Some(revoked.min(expires)),
            (revoked, expires) => revoked.or(expires),
        }
    }
}

/// Outcome of the insert of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyInserted {
    /// The row was stored. One of a key that had ended made way, if there were as many rows as there may be.
    Done { displaced: Option<OwnerKeyId> },
    /// There are as many keys as there may be, and none has ended.
    Full,
}

/// Transactions on keys of owners.
#[async_trait]
pub trait KeyStore {
    /// Stores a new key, unless there are `rows_max` of which none has ended by its creation.
    async fn insert_key(&self, new: &OwnerKey, rows_max: u64) -> Result<KeyInserted>;

    /// Returns keys by id, those after `after`, at most `limit`.
    async fn keys(&self, after: Option<&OwnerKeyId>, limit: u32) -> Result<Vec<OwnerKey>>;

    /// Revokes a key, unless it is revoked already. Returns the row, or `None` if there is none.
    async fn revoke_key(&self, id: &OwnerKeyId, at: Timestamp) -> Result<Option<OwnerKey>>;

    /// Stores when keys were last used, all of the times or none. A key that does not exist is left out, and an
    /// earlier time than the stored one changes nothing.
    async fn note_key_uses(&self, uses: &[(OwnerKeyId, Timestamp)]) -> Result<()>;

    /// Deletes the keys that ended before `before`, and returns their ids.
    async fn purge_keys(&self, before: Timestamp) -> Result<Vec<OwnerKeyId>>;
}
