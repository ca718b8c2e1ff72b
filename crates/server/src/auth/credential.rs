//! Credentials in the headers of a request.

use axum::http::{HeaderMap, HeaderName};

use super::key::KeyId;

/// Reason why a caller is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// Message for the caller: what to change. Never repeats what was sent.
    pub message: &'static str,
    /// Id of the key that was tried, if one was.
    pub tried: Option<KeyId>,
    /// True if the key is that of an owner, and was revoked or has expired. It is refused even where no key is
    /// required, because its holder would otherwise act without its owner.
    pub has_ended: bool,
}

impl Denied {
    /// Returns the refusal of a caller who tried this key, if any.
    pub fn of(message: &'static str, tried: Option<KeyId>) -> Denied {
        Denied { message, tried, has_ended: false }
    }
}

/// Returns the refusal of a caller who tried no key.
pub(super) fn denied(message: &'static str) -> Denied {
    Denied::of(message, None)
}

/// Returns the value of a header, which may be sent once.
pub(super) fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    twice: &'static str,
    empty: &'static str,
) -> Result<Option<&'a [u8]>, Denied> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(denied(twice));
    }
    match value.as_bytes().trim_ascii() {
        b"" => Err(denied(empty)),
        key => Ok(Some(key)),
    }
}
