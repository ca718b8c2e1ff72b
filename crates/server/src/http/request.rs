//! Extractors of requests: strict JSON, strict queries, and names in paths.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::Uri;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::body;
use super::error::{ApiError, Refusal, malformed};
use super::request_memory::Meter;
use super::strict_json::{is_json, parse, worded};
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
