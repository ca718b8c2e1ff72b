//! Names that callers and the service give to things.

use std::fmt;

use crate::text::is_hidden;

/// The longest owner id, in characters.
const OWNER_CHARS_MAX: usize = 128;

/// Who a sandbox is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(String);

/// The rule that an owner id broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOwner {
    /// Nothing is left after trimming.
    #[error("the owner id is empty")]
    Empty,
    /// More than 128 characters.
    #[error("the owner id is longer than 128 characters")]
    TooLong,
    /// A character that could be mistaken for a separator, or not be seen.
    #[error("the owner id may not contain whitespace, characters that cannot be seen, `/` or `\\`")]
    BadCharacter,
    /// The name of a route where the routes of quotas have an owner.
    #[error("no owner can be called `summary`, which names a route of the quotas; choose another owner id")]
    Reserved,
}

/// Name that a path has in the place of an owner id.
const RESERVED: &str = "summary";

impl OwnerId {
    /// Trims `text` and checks it against the rules of section 8.
    ///
    /// # Errors
    /// [`InvalidOwner`] names the broken rule.
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

    /// Takes an id from the store, which an earlier release may have accepted by
    /// looser rules.
    #[must_use]
    pub fn stored(text: String) -> Self {
        Self(text)
    }

    /// The id as it was given, trimmed.
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

/// `sb-` and 16 characters of lower-case base32: 80 random bits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);

/// A text that no sandbox id ever looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a sandbox id")]
pub struct InvalidSandboxId;

/// RFC 4648 base32, lower case. <https://www.rfc-editor.org/rfc/rfc4648#section-6>
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Base32 of 80 bits, without padding: always 16 characters.
fn base32(entropy: [u8; 10]) -> String {
    let mut bits = 0u32;
    let mut held = 0u32;
    let mut out = String::with_capacity(16);
    for byte in entropy {
        bits = bits << 8 | u32::from(byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            out.push(char::from(BASE32[(bits >> held & 31) as usize]));
        }
        bits &= (1 << held) - 1;
    }
    out
}

fn is_token(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|token| token.len() == 16 && token.bytes().all(|b| BASE32.contains(&b)))
}

impl SandboxId {
    /// The id that 80 random bits make.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 10]) -> Self {
        Self(format!("sb-{}", base32(entropy)))
    }

    /// Accepts exactly what [`SandboxId::from_entropy`] makes, so that an id can
    /// be used as a directory name without a further thought.
    ///
    /// # Errors
    /// [`InvalidSandboxId`] for anything else, prefixes of real ids too.
    pub fn parse(text: &str) -> Result<Self, InvalidSandboxId> {
        is_token(text, "sb-").then(|| Self(text.to_owned())).ok_or(InvalidSandboxId)
    }

    /// The id as text.
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

/// Which store a box belongs to; removal of orphans touches only its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreId(String);

impl StoreId {
    /// The id that 80 random bits make: 16 characters of lower-case base32.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 10]) -> Self {
        Self(base32(entropy))
    }

    /// Reads back what [`StoreId::from_entropy`] made; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_token(text, "").then(|| Self(text.to_owned()))
    }

    /// The id as text.
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
