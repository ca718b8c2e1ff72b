//! The key that secrets are sealed with.
//!
//! A sealed value is a byte with the number of the format, a nonce, and what ChaCha20-Poly1305
//! (RFC 8439) makes of the value. What a value is for is authenticated with it, so that a row of the
//! store cannot be given to another name or other hosts.

use std::fmt;

use rand::random;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use secrecy::zeroize::Zeroizing;

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Number of the format.
const FORMAT: u8 = 1;

/// Key that secrets are sealed with.
pub struct SealingKey(LessSafeKey);

impl SealingKey {
    /// Wraps the bytes of a key.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> SealingKey {
        SealingKey(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, bytes).expect("a key of this length")))
    }

    /// Seals a value that is for `purpose`.
    #[must_use]
    pub fn seal(&self, purpose: &str, value: &[u8]) -> Vec<u8> {
        // With 96 random bits, a repetition is improbable up to billions of values.
        let nonce: [u8; NONCE_LEN] = random();
        let mut sealed = value.to_vec();
        let nonced = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(nonced, Aad::from(purpose), &mut sealed).expect("a value of bounded length");
        [&[FORMAT], &nonce[..], &sealed].concat()
    }

    /// Opens what [`SealingKey::seal`] made for the same purpose; `None` if it was sealed with another
    /// key or for another purpose, or was changed.
    #[must_use]
    pub fn open(&self, purpose: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, sealed) = sealed.strip_prefix(&[FORMAT])?.split_first_chunk::<NONCE_LEN>()?;
        let mut opened = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.0.open_in_place(nonce, Aad::from(purpose), &mut opened).ok()?.len();
        opened.truncate(length);
        Some(opened)
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_value_opens_with_its_key_for_its_purpose_and_unchanged_only() {
        let key = SealingKey::new(&[7; KEY_BYTES]);
        let sealed = key.seal("a", b"value");
        assert_eq!(key.open("a", &sealed).unwrap().as_slice(), b"value");
        assert_ne!(key.seal("a", b"value"), sealed, "two of one value cannot be told to be equal");
        assert!(sealed.windows(5).all(|window| window != b"value"));
        assert!(key.open("b", &sealed).is_none());
        assert!(SealingKey::new(&[8; KEY_BYTES]).open("a", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key.open("a", &changed).is_none(), "{at}");
            assert!(key.open("a", &sealed[..at]).is_none(), "{at}");
        }
        assert_eq!(key.open("", &key.seal("", b"")).unwrap().as_slice(), b"");
        assert_eq!(format!("{key:?}"), "[hidden]");
    }
}
