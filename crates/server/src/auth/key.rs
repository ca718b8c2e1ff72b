//! Keys as hashes.

use std::fmt::{self, Write as _};

use domain::OwnerKeyId;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Secret;
use crate::owner_keys;

/// Bytes of the hash that identify a key: enough to distinguish keys, too few to verify a guess
/// of a whole key.
const ID_BYTES: usize = 6;

/// Hash of a key: it can be compared, but the key cannot be read from it.
#[derive(Clone)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Returns the hash of a configured key.
    pub fn of(key: &Secret) -> KeyHash {
        Self::of_bytes(key.expose().as_bytes())
    }

    /// Returns the hash of a key as it was sent.
    pub fn of_bytes(key: &[u8]) -> KeyHash {
        KeyHash(owner_keys::hash(key))
    }

    /// Returns whether both are hashes of the same key, in constant time.
    pub fn matches(&self, other: &KeyHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns the hash, which is also that of an owner's key.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the id of the key for logs and the audit history.
    pub fn id(&self) -> KeyId {
        // Hashed again, so that the id is no part of the hash that is compared.
        let hash = Sha256::new().chain_update(b"tidebox key id\0").chain_update(self.0).finalize();
        let mut text = String::with_capacity(2 * ID_BYTES);
        for byte in &hash[..ID_BYTES] {
            let _ = write!(text, "{byte:02x}");
        }
        KeyId(text)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// Id that distinguishes keys in the log, the audit history and the rate limiter without
/// revealing them: the id of an owner's key, or 12 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyId(String);

impl KeyId {
    /// Returns the id of an owner's key.
    pub(super) fn of_owner_key(id: &OwnerKeyId) -> Self {
        Self(id.to_string())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
