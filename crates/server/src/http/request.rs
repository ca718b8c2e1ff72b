//! Extractors of requests: strict JSON, strict queries, names in paths and the owner.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use domain::OwnerId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::body;
use super::error::{ApiError, Refusal, malformed};
use super::meter::Meter;
use crate::control::IdempotencyKey;

/// Largest JSON body, in bytes.
pub const JSON_BYTES_MAX: usize = 1024 * 1024;

/// JSON body. An absent or empty one is an empty object.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let is_json = is_json(request.headers());
        let meter = Meter::on(&request)?;
        let bytes = body::collect(request.into_body(), JSON_BYTES_MAX, meter.account()).await?;
        if bytes.is_empty() {
            return parse(b"{}").map(Json);
        }
        if !is_json {
            return Err(Refusal::MediaType.into());
        }
        bytes.parse(&meter).await.map(Json)
    }
}

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
fn worded(text: &str) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number from 0 to 18446744073709551615"),
        ("invalid digit found in string", "is not a whole number"),
        ("number too large to fit in target type", "is too large a number"),
        ("cannot parse integer from empty string", "is empty, not a whole number"),
    ];
    WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// Query string. Unknown and repeated parameters are refused by the type.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::of(&parts.uri)
    }
}

impl<T: DeserializeOwned> Params<T> {
    /// Parses the query of `uri`.
    pub fn of(uri: &Uri) -> Result<Self, ApiError> {
        Query::try_from_uri(uri)
            .map(|Query(params)| Params(params))
            .map_err(|error| malformed(format!("the query: {}", worded(&innermost(&error)))))
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Name in the path, such as a sandbox id.
#[derive(Debug)]
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Path::<String>::from_request_parts(parts, state)
            .await
            .map(|Path(name)| Name(name))
            .map_err(|_| malformed("the path is not percent-encoded UTF-8"))
    }
}

/// Several names in the path.
#[derive(Debug)]
pub struct Names<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Names<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Path::<T>::from_request_parts(parts, state)
            .await
            .map(|Path(names)| Names(names))
            .map_err(|_| malformed("the path is not percent-encoded UTF-8"))
    }
}

/// Owner charged for the request: `X-User-ID`.
#[derive(Debug, Clone, Default)]
pub struct Owner(pub Option<OwnerId>);

impl<S: Send + Sync> FromRequestParts<S> for Owner {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        owner(&parts.headers).map(Owner)
    }
}

/// Returns the owner that the headers name.
///
/// # Errors
/// If `X-User-ID` is given twice or is no owner id.
pub fn owner(headers: &HeaderMap) -> Result<Option<OwnerId>, ApiError> {
    let mut values = headers.get_all("x-user-id").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(malformed("`X-User-ID` is given twice"));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| malformed("`X-User-ID` is not UTF-8"))?;
    OwnerId::parse(text).map(Some).map_err(|error| malformed(format!("`X-User-ID`: {error}")))
}

/// Caller's own name for a request, from `Idempotency-Key`.
#[derive(Debug)]
pub struct RequestName(String);

impl RequestName {
    /// Returns the key for a request with this body. A repetition must have the same body.
    pub fn of(self, body: &impl Serialize) -> IdempotencyKey {
        // Objects are sorted in a `Value`, so the order of the fields makes no difference.
        let canonical = serde_json::to_value(body).unwrap_or_default().to_string();
        let hash = Sha256::digest(canonical.as_bytes());
        IdempotencyKey { key: self.0, request: BASE64_URL.encode(hash) }
    }
}

/// Longest `Idempotency-Key`, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// Optional `Idempotency-Key` of a request, which makes it safe to repeat.
#[derive(Debug)]
pub struct Repeatable(pub Option<RequestName>);

impl<S: Send + Sync> FromRequestParts<S> for Repeatable {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all("idempotency-key").iter();
        let Some(value) = values.next() else { return Ok(Repeatable(None)) };
        if values.next().is_some() {
            return Err(malformed("`Idempotency-Key` is given twice"));
        }
        match value.to_str() {
            Ok(key) if (1..=KEY_BYTES_MAX).contains(&key.len()) => Ok(Repeatable(Some(RequestName(key.to_owned())))),
            _ => Err(malformed(format!("`Idempotency-Key` must be 1 to {KEY_BYTES_MAX} visible ASCII characters"))),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn refusal(body: &str) -> String {
        parse::<api::SpawnRequest>(body.as_bytes()).unwrap_err().body().1.message
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
