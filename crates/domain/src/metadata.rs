//! Labels on sandboxes and templates.

use std::collections::BTreeMap;

/// String labels, bounded so that a list of sandboxes stays small.
pub type Metadata = BTreeMap<String, String>;

/// The most labels one sandbox may have.
const ENTRIES_MAX: usize = 64;
/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 128;
/// The longest value, in bytes.
const VALUE_BYTES_MAX: usize = 4096;

/// The rule that the labels broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMetadata {
    /// More than 64 labels.
    #[error("metadata may have at most 64 entries")]
    TooMany,
    /// An empty key, one over 128 bytes, or one with control characters.
    #[error("metadata keys are 1 to 128 bytes without control characters")]
    Key,
    /// A value over 4,096 bytes or with a NUL.
    #[error("metadata values are at most 4096 bytes without NUL")]
    Value,
}

impl InvalidMetadata {
    /// Checks the labels of a request.
    ///
    /// # Errors
    /// The broken rule.
    pub fn check(metadata: &Metadata) -> Result<(), Self> {
        if metadata.len() > ENTRIES_MAX {
            return Err(Self::TooMany);
        }
        for (key, value) in metadata {
            if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
                return Err(Self::Key);
            }
            if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
                return Err(Self::Value);
            }
        }
        Ok(())
    }
}
