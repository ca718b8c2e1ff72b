//! Lists in pages: the next one begins at a token.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::query::Query;
use crate::http::error::{Result, malformed};

const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");
/// Entries of a page where a request leaves the number out, and the most.
pub const PAGE: u64 = 100;

/// Returns the position after which a page begins; `None` for the first page.
///
/// # Errors
/// If the token of the query is none that `read` knows.
pub fn after<T>(query: &Query, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
    let Some(token) = query.get("nextToken").filter(|token| !token.is_empty()) else { return Ok(None) };
    let after = read(token);
    after.map(Some).ok_or_else(|| malformed("`nextToken` is not valid; use the value of `x-next-token`"))
}

/// Returns the headers of a page; without a token on the last one.
pub fn next(token: Option<String>) -> HeaderMap {
    let token = token.and_then(|token| HeaderValue::try_from(token).ok());
    token.into_iter().map(|token| (NEXT_TOKEN, token)).collect()
}
