//! Labels on sandboxes and templates.

use std::collections::BTreeMap;

use crate::text::is_hidden;

/// Labels of a sandbox or template, by key. [`InvalidMetadata::check`] bounds them, so that a list
/// of sandboxes stays small.
pub type Metadata = BTreeMap<String, String>;

/// Maximum number of labels of one sandbox.
const ENTRIES_MAX: usize = 64;
/// Maximum length of a key, in bytes.
const KEY_BYTES_MAX: usize = 128;
/// Maximum length of a value, in bytes.
const VALUE_BYTES_MAX: usize = 4096;
/// Maximum size of all keys and values together, in bytes: they are in every row, list and event of
/// the sandbox, and 64 of the longest would be 270 KB.
const BYTES_MAX: usize = 16 * 1024;

/// The rule that labels break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMetadata {
    /// More than 64 labels.
    #[error("metadata may have at most 64 entries")]
    TooMany,
    /// More than 16 KiB in all keys and values together.
    #[error("metadata may have at most 16384 bytes in all keys and values together")]
    TooLarge,
    /// A key that is empty, over 128 bytes, or has invisible characters.
    #[error("metadata keys must be 1 to 128 bytes without invisible characters")]
    Key,
    /// A value that is over 4,096 bytes or has a NUL.
    #[error("metadata values must be at most 4096 bytes without NUL")]
    Value,
}

impl InvalidMetadata {
    /// Checks the labels of a request.
    ///
    /// # Errors
    /// [`InvalidMetadata`] names the first broken rule.
    pub fn check(metadata: &Metadata) -> Result<(), Self> {
        if metadata.len() > ENTRIES_MAX {
            return Err(Self::TooMany);
        }
        for (key, value) in metadata {
            if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(is_hidden) {
                return Err(Self::Key);
            }
            if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
                return Err(Self::Value);
            }
        }
        let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > BYTES_MAX {
            return Err(Self::TooLarge);
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(entries: impl IntoIterator<Item = (String, String)>, expected: Result<(), InvalidMetadata>) {
        assert_eq!(InvalidMetadata::check(&entries.into_iter().collect()), expected);
    }

    #[test]
    fn labels_are_bounded_one_by_one_and_all_together() {
        let label = |n: usize, bytes: usize| (format!("{n:0>4}"), "x".repeat(bytes - 4));
        check((0..64).map(|n| label(n, 16 * 1024 / 64)), Ok(()));
        check((0..65).map(|n| label(n, 4)), Err(InvalidMetadata::TooMany));
        check((0..4).map(|n| label(n, 4096)), Ok(()));
        check((0..4).map(|n| label(n, 4096)).chain([("k".to_owned(), String::new())]), Err(InvalidMetadata::TooLarge));
        check((0..5).map(|n| label(n, 4096)), Err(InvalidMetadata::TooLarge));
        check([("k".to_owned(), "x".repeat(4097))], Err(InvalidMetadata::Value));
    }

    #[test]
    fn a_key_can_be_seen_and_a_value_is_any_text() {
        for key in ["", "a\nb", "a\u{200b}b", "a\u{202e}b"] {
            check([(key.to_owned(), String::new())], Err(InvalidMetadata::Key));
        }
        check([("größe in m²".to_owned(), "a\n\u{200d}b".to_owned())], Ok(()));
        check([("k".to_owned(), "a\0".to_owned())], Err(InvalidMetadata::Value));
    }
}
