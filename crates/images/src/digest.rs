//! Digests of manifests and blobs, `sha256:` and 64 hexadecimal digits.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Returns whether `digest` is a well-formed `sha256:…`, the only kind that the store holds.
#[must_use]
pub fn is_digest(digest: &str) -> bool {
    hex_of(digest).is_some()
}

/// Returns the hexadecimal digits of a digest; `None` if it is malformed.
pub(super) fn hex_of(digest: &str) -> Option<&str> {
    digest.strip_prefix("sha256:").filter(|hex| is_hex(hex))
}

/// Returns the digest of `bytes`, `sha256:…`.
pub(super) fn sha256(bytes: &[u8]) -> String {
    finish(Sha256::new_with_prefix(bytes))
}

/// Returns the digest of the bytes that `hash` has read.
pub(super) fn finish(hash: Sha256) -> String {
    format!("sha256:{}", hex(&hash.finalize()))
}

/// Formats bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns whether `text` is the digits of a digest.
pub(super) fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
