//! Secrets, as stored: sealed.

use std::fmt;

use domain::{SecretBinding, SecretName, Timestamp};

/// A secret to store.
pub struct NewSecret {
    pub name: SecretName,
    pub binding: SecretBinding,
    /// Its value, sealed.
    pub sealed: Vec<u8>,
}

impl fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A secret, as stored.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredSecret {
    pub name: SecretName,
    pub binding: SecretBinding,
    /// Its value, sealed.
    pub sealed: Vec<u8>,
    /// Time of the first save.
    pub created_at: Timestamp,
    /// Time of the last save.
    pub updated_at: Timestamp,
}

impl fmt::Debug for StoredSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSecret").field("name", &self.name).finish_non_exhaustive()
    }
}
