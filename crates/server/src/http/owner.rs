//! Owner of a request.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use domain::OwnerId;

use super::error::{ApiError, malformed};

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
