//! Secrets that cannot be printed.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use super::tree::Value;

/// Placeholder for a secret that is set.
pub(super) const HIDDEN: &str = "[hidden]";

/// A key or token. Its memory is wiped on drop, `Debug` hides it, and a comparison takes the
/// same time wherever two differ.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps `text`, so that it cannot be printed.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text.into())
    }

    /// Returns the secret itself: for hashing, signing and sending, and nothing else.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose().as_bytes().ct_eq(other.expose().as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Returns what is kept of a secret that was written: whether there is one.
pub(super) fn hidden(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bare(text) if text.is_empty() => Value::Null,
        Value::List(items) => Value::List(items.iter().map(hidden).collect()),
        Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::Text(_) | Value::Bare(_) | Value::Map(_) => {
            Value::Text(HIDDEN.to_owned())
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_secret_does_not_show_itself() {
        let secret = Secret::new("hunter2".to_owned());
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "[hidden] Some([hidden])");
        assert_eq!(secret, Secret::new("hunter2".to_owned()));
        assert_ne!(secret, Secret::new("hunter3".to_owned()));
    }
}
