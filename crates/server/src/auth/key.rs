//! Keys as hashes.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Secret;

/// How many bytes of its hash name a key: enough to tell keys apart, too few to
/// check a guess of a whole key against.
const ID_BYTES: usize = 6;

/// A key that can be recognised and not be read.
#[derive(Clone)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of a configured key.
    pub fn of(key: &Secret) -> KeyHash {
        Self::of_bytes(key.expose().as_bytes())
    }

    /// The hash of a key as it was sent.
    pub fn of_bytes(key: &[u8]) -> KeyHash {
        KeyHash(Sha256::digest(key).into())
    }

    /// Whether both are of the same key; takes the same time wherever they differ.
    pub fn matches(&self, other: &KeyHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// What may be written down of it.
    pub fn id(&self) -> KeyId {
        // Hashed again, so that what is written down is no part of what we compare.
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

/// Tells keys apart in the log, the audit history and the rate limiter, without
/// giving one away: 12 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyId(String);

impl KeyId {
    /// The digits.
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
