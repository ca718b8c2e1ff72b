//! Strict reading of JSON, with messages that name the field.

use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;

use super::error::{ApiError, malformed};

/// Returns whether the content type is JSON.
pub fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// Parses a JSON body strictly: unknown fields, duplicate keys and trailing data are refused,
/// and the message names the field.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    parse_as("the body", bytes)
}

/// Parses JSON as [`parse`] does. `what` names it in errors.
pub fn parse_as<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ApiError> {
    // serde would accept an array with the fields in their order.
    if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(malformed(format!("{what}: is not a JSON object")));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = worded(&error.inner().to_string());
        // The path is unknown when the text breaks off.
        if matches!(path.as_str(), "." | "?") {
            malformed(format!("{what}: {inner}"))
        } else {
            malformed(format!("`{path}`: {inner}"))
        }
    })?;
    reader.end().map_err(|error| malformed(format!("{what}: {error}")))?;
    Ok(value)
}

/// Rewords the number errors of Rust for readers who do not know it.
pub fn worded(text: &str) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number from 0 to 18446744073709551615"),
        ("invalid digit found in string", "is not a whole number"),
        ("number too large to fit in target type", "is too large a number"),
        ("cannot parse integer from empty string", "is empty, not a whole number"),
    ];
    WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn refusal(body: &str) -> String {
        parse::<api::SpawnRequest>(body.as_bytes()).unwrap_err().message()
    }

    #[test]
    fn json_is_read_strictly_and_the_field_is_named() {
        for (body, named) in [
            (r#"{"imag":"host"}"#, "unknown field `imag`"),
            (r#"{"image":"a","image":"b"}"#, "duplicate field `image`"),
            (r#"{"metadata":{"k":"1","k":"2"}}"#, "`metadata`: duplicate key `k`"),
            (r#"{"metadata":{"k":1}}"#, "`metadata.k`: invalid type"),
            (r#"{"vcpus":-1}"#, "`vcpus`: invalid value"),
            (r#"{"vcpus":1.5}"#, "`vcpus`: invalid type"),
            (r#"{"vcpus":1e99}"#, "`vcpus`"),
            (
                r#"{"memory_mb":99999999999}"#,
                "`memory_mb`: invalid value: integer `99999999999`, expected a whole number from",
            ),
            (r#"{} {}"#, "trailing characters"),
            (r#"{"#, "the body: EOF"),
            (r#"[]"#, "the body: "),
            ("\u{feff}{}", "the body: "),
        ] {
            let message = refusal(body);
            assert!(message.contains(named), "{body}: {message}");
        }
        let deep = format!(r#"{{"image":{}"#, "[".repeat(100_000));
        assert!(!refusal(&deep).is_empty());
    }

    #[test]
    fn only_json_is_json() {
        let check = |value: &str, expected| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]);
            assert_eq!(is_json(&headers), expected, "{value}");
        };
        check("application/json", true);
        check("Application/JSON; charset=utf-8", true);
        check("text/plain", false);
        check("application/json-patch+json", false);
        check("text/plain;application/json", false);
    }
}
