//! Texts of the API that stand for times, durations and names.

use std::time::Duration;

use domain::{DurationError, Timestamp};

use crate::control::{Error, Limit};
use crate::http::error::{ApiError, malformed};

/// Formats a time as RFC 3339 with milliseconds, in UTC.
pub fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// Formats a duration as `1h30m0s`.
pub fn duration(duration: Duration) -> String {
    domain::format_duration(duration)
}

/// Returns a duration in whole milliseconds.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a lifetime or deadline of the field `field`: a duration above zero.
pub fn span(field: &'static str, text: &str) -> Result<Duration, ApiError> {
    match span_or_zero(field, text)? {
        Duration::ZERO => Err(malformed(format!("`{field}` must be longer than zero"))),
        span => Ok(span),
    }
}

/// Parses a duration of the field `field`, where zero has a meaning.
pub fn span_or_zero(field: &'static str, text: &str) -> Result<Duration, ApiError> {
    match domain::parse_duration(text) {
        Ok(span) => Ok(span),
        // Well-formed, and above every maximum.
        Err(DurationError::TooLong) => Err(Error::from(Limit::DurationTooLong { field }).into()),
        Err(error) => Err(malformed(format!("`{field}`: `{}` {error}", shortened(text)))),
    }
}

/// Shortens a caller's text to 40 characters, to be repeated in a message.
pub fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Refuses an empty text.
pub fn given(field: &str, text: Option<String>) -> Result<Option<String>, ApiError> {
    match text.as_deref() {
        Some("") => Err(malformed(format!("`{field}` may be omitted, but must not be empty"))),
        _ => Ok(text),
    }
}

/// Parses permission bits such as `755`.
pub fn mode(text: &str) -> Result<u32, ApiError> {
    // Digits only: `from_str_radix` would accept a sign.
    let is_octal = (1..=5).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o7777);
    mode.ok_or_else(|| malformed(format!("`mode`: `{}` is not an octal mode such as 644 or 0755", shortened(text))))
}
