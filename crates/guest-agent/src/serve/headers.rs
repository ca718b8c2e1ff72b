//! JSON in headers and trailers.

use guest_protocol::{Failure, REQUEST_HEADER, USER_HEADER};
use hyper::header::{HeaderMap, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Result, internal, invalid};

/// Characters that are encoded in a JSON header: all but printable ASCII, and the percent sign
/// itself.
const HEADER_SET: &AsciiSet = &CONTROLS.add(b'%');

/// Parses the details of a request whose body is something else.
///
/// # Errors
/// Invalid if they are missing or make no sense.
pub(super) fn from_header<T: DeserializeOwned>(headers: &HeaderMap) -> Result<T> {
    let value = headers.get(REQUEST_HEADER).and_then(|value| value.to_str().ok()).ok_or_else(bad_header)?;
    let text = percent_decode_str(value).decode_utf8().map_err(|_| bad_header())?;
    serde_json::from_str(&text).map_err(|error| invalid(format!("the header {REQUEST_HEADER} is malformed: {error}")))
}

/// Returns the user that a request about files is carried out as, if it names one.
///
/// # Errors
/// Invalid if the header makes no sense.
pub(super) fn user(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(value) = headers.get(USER_HEADER) else { return Ok(None) };
    let malformed = || invalid(format!("the header {USER_HEADER} is malformed"));
    let text = value.to_str().map_err(|_| malformed())?;
    let text = percent_decode_str(text).decode_utf8().map_err(|_| malformed())?;
    serde_json::from_str(&text).map(Some).map_err(|_| malformed())
}

fn bad_header() -> Failure {
    invalid(format!("the header {REQUEST_HEADER} is missing or malformed"))
}

/// Encodes a value for a header or a trailer.
///
/// # Errors
/// Internal if it has no JSON.
pub(super) fn to_header(value: &impl Serialize) -> Result<HeaderValue> {
    let text = serde_json::to_string(value).map_err(|error| internal(error.to_string()))?;
    let encoded = utf8_percent_encode(&text, HEADER_SET).to_string();
    HeaderValue::try_from(encoded).map_err(|error| internal(error.to_string()))
}
