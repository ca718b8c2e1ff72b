//! Identifiers of owners, their keys, sandboxes and stores.

use std::fmt;

use crate::text::is_hidden;

/// Maximum length of an owner id, in characters.
const OWNER_CHARS_MAX: usize = 128;

/// Identifier of the owner charged for a sandbox: 1 to 128 characters without whitespace, invisible
/// characters, `/` and `\`, and not `summary`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(String);

/// The rule that an owner id breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOwner {
    /// The text is empty after trimming.
    #[error("the owner id is empty")]
    Empty,
    /// The id is longer than 128 characters.
    #[error("the owner id is longer than 128 characters")]
    TooLong,
    /// The id has whitespace, an invisible character, `/` or `\`.
    #[error("the owner id may not contain whitespace, invisible characters, `/` or `\\`")]
    BadCharacter,
    /// The id is a path segment that the quota routes use in the place of an owner id.
    #[error("the owner id cannot be `summary`, which is the name of a quota route; choose another one")]
    Reserved,
}

/// Path segment that the quota routes use in the place of an owner id.
const RESERVED: &str = "summary";

impl OwnerId {
    /// Reads an id: trims `text` and checks the rules of [`OwnerId`].
    ///
    /// # Errors
    /// [`InvalidOwner`] names the first broken rule.
    pub fn parse(text: &str) -> Result<Self, InvalidOwner> {
        let text = text.trim();
        if text.is_empty() {
            return Err(InvalidOwner::Empty);
        }
        if text.chars().count() > OWNER_CHARS_MAX {
            return Err(InvalidOwner::TooLong);
        }
        if text.chars().any(|c| c.is_whitespace() || is_hidden(c) || c == '/' || c == '\\') {
            return Err(InvalidOwner::BadCharacter);
        }
        if text == RESERVED {
            return Err(InvalidOwner::Reserved);
        }
        Ok(Self(text.to_owned()))
    }

    /// Wraps an id from the store without a check: an earlier release may have accepted it by
    /// looser rules.
    #[must_use]
    pub fn stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the id as it was given, trimmed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifier of a sandbox: `sb-` and 16 characters of lower-case base32, which are 80 random bits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);

/// A text that is not a sandbox id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a sandbox id")]
pub struct InvalidSandboxId;

/// RFC 4648 base32, lower case. <https://www.rfc-editor.org/rfc/rfc4648#section-6>
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Encodes bytes as base32 in lower case without padding: 16 characters for 10 bytes.
#[must_use]
pub fn base32(bytes: &[u8]) -> String {
    let mut bits = 0u32;
    let mut held = 0u32;
    let mut out = String::with_capacity(bytes.len().div_ceil(5) * 8);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            out.push(char::from(BASE32[(bits >> held & 31) as usize]));
        }
        bits &= (1 << held) - 1;
    }
    if held > 0 {
        out.push(char::from(BASE32[(bits << (5 - held) & 31) as usize]));
    }
    out
}

fn is_token(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|token| token.len() == 16 && token.bytes().all(|b| BASE32.contains(&b)))
}

impl SandboxId {
    /// Makes an id of 80 random bits.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 10]) -> Self {
        Self(format!("sb-{}", base32(&entropy)))
    }

    /// Reads an id. Accepts exactly the texts that [`SandboxId::from_entropy`] makes, so that an id
    /// is safe as the name of a directory.
    ///
    /// # Errors
    /// [`InvalidSandboxId`] for anything else, prefixes of real ids too.
    pub fn parse(text: &str) -> Result<Self, InvalidSandboxId> {
        is_token(text, "sb-").then(|| Self(text.to_owned())).ok_or(InvalidSandboxId)
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifier of a snapshot: `snap-` and 16 characters of lower-case base32, which are 80 random bits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(String);

/// A text that is not a snapshot id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a snapshot id")]
pub struct InvalidSnapshotId;

impl SnapshotId {
    /// Makes an id of 80 random bits.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 10]) -> Self {
        Self(format!("snap-{}", base32(&entropy)))
    }

    /// Reads an id. Accepts exactly the texts that [`SnapshotId::from_entropy`] makes, so that an id
    /// is safe as the name of a directory.
    ///
    /// # Errors
    /// [`InvalidSnapshotId`] for anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidSnapshotId> {
        is_token(text, "snap-").then(|| Self(text.to_owned())).ok_or(InvalidSnapshotId)
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifier of an owner's key: `key-` and 16 characters of lower-case base32, which are 80 random bits. It says
/// nothing about the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerKeyId(String);

impl OwnerKeyId {
    /// Makes an id of 80 random bits.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 10]) -> Self {
        Self(format!("key-{}", base32(&entropy)))
    }

    /// Reads a text that [`OwnerKeyId::from_entropy`] made; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_token(text, "key-").then(|| Self(text.to_owned()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifier of a store. Removal of orphans touches only boxes that carry their own store's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreId(String);

impl StoreId {
    /// Makes an id of 80 random bits: 16 characters of lower-case base32.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 10]) -> Self {
        Self(base32(&entropy))
    }

    /// Reads a text that [`StoreId::from_entropy`] made; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_token(text, "").then(|| Self(text.to_owned()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base32_agrees_with_rfc_4648() {
        assert_eq!(SandboxId::from_entropy(*b"foobarfoob").as_str(), "sb-mzxw6ytbojtg633c");
    }

    #[test]
    fn prefixes_and_other_shapes_are_no_sandbox_ids() {
        for text in [
            "",
            "sb-",
            "sb-mzxw6ytbojtg633",
            "sb_mzxw6ytbojtg633c",
            "sb-MZXW6YTBOJTG633C",
            "sb-../../../etc/pa",
            "sb-mzxw6ytbojtg633c2",
        ] {
            assert_eq!(SandboxId::parse(text), Err(InvalidSandboxId), "{text}");
        }
    }

    #[test]
    fn owner_ids_are_trimmed_and_checked() {
        let check = |text: &str, expected| {
            assert_eq!(OwnerId::parse(text).as_ref().map(OwnerId::as_str).map_err(|e| *e), expected, "{text:?}")
        };
        check("  alice\t", Ok("alice"));
        check("团队-7@example.org", Ok("团队-7@example.org"));
        let (longest, too_long) = ("ä".repeat(128), "ä".repeat(129));
        check(&longest, Ok(&longest));
        check(&too_long, Err(InvalidOwner::TooLong));
        check(" \n ", Err(InvalidOwner::Empty));
        for text in [
            "a b",
            "a\u{a0}b",
            "a/b",
            "a\\b",
            "a\0b",
            "a\u{7f}b",
            "a\u{85}b",
            "a\u{200b}b",
            "\u{202e}ecila",
            "a\u{e000}",
            "a\u{378}",
        ] {
            check(text, Err(InvalidOwner::BadCharacter));
        }
    }

    proptest! {
        #[test]
        fn every_made_id_is_accepted_again(entropy: [u8; 10]) {
            let id = SandboxId::from_entropy(entropy);
            prop_assert_eq!(SandboxId::parse(id.as_str()), Ok(id));
        }
    }
}
