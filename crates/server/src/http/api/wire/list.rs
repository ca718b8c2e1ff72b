//! The query of the list of sandboxes, and its cursors.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use domain::{OwnerId, State};

use crate::control::Cursor;
use crate::control::ListFilter;
use crate::http::error::{ApiError, malformed};

/// Most sandboxes in one page of the list.
const LIST_LIMIT_MAX: u32 = 1000;
/// Most labels in a filter: no sandbox has more.
const LABELS_MAX: usize = 64;

/// Parses the query of the list. Done by hand, since the names of labels are not known beforehand.
pub fn list_filter(query: Vec<(String, String)>) -> Result<ListFilter, ApiError> {
    let mut filter = ListFilter::default();
    let mut seen = BTreeSet::new();
    for (name, value) in query {
        if !seen.insert(name.clone()) {
            return Err(malformed(format!("the query: `{name}` is given twice")));
        }
        match name.as_str() {
            "owner_id" => {
                let owner = OwnerId::parse(&value).map_err(|error| malformed(format!("`owner_id`: {error}")))?;
                filter.owner = Some(owner);
            }
            "state" => {
                let state = State::parse(&value).filter(|state| *state != State::Destroyed);
                let state =
                    state.ok_or_else(|| malformed("`state` must be creating, running, paused, destroying or failed"));
                filter.state = Some(state?);
            }
            "provider" => filter.provider = Some(value),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=LIST_LIMIT_MAX).contains(limit));
                let limit = limit.ok_or_else(|| malformed(format!("`limit` must be 1 to {LIST_LIMIT_MAX}")));
                filter.limit = Some(limit?);
            }
            "cursor" => {
                let cursor = parse_cursor(&value)
                    .ok_or_else(|| malformed("`cursor` is not valid; use the value of `X-Next-Cursor`"));
                filter.after = Some(cursor?);
            }
            _ => match name.strip_prefix("metadata.") {
                Some(_) if filter.metadata.len() == LABELS_MAX => {
                    return Err(malformed(format!("the query: at most {LABELS_MAX} labels; no sandbox has more")));
                }
                Some(key) if !key.is_empty() => {
                    filter.metadata.insert(key.to_owned(), value);
                }
                _ => {
                    let known = "owner_id, state, provider, metadata.<key>, limit and cursor";
                    return Err(malformed(format!(
                        "the query: unknown parameter `{name}`; the parameters are {known}"
                    )));
                }
            },
        }
    }
    Ok(filter)
}

/// Encodes a cursor for `X-Next-Cursor`; opaque to clients.
pub fn cursor(cursor: Cursor) -> String {
    BASE64_URL.encode(format!("{}.{}", cursor.created_at_ms, cursor.row))
}

/// Decodes a cursor; `None` for any other text.
fn parse_cursor(text: &str) -> Option<Cursor> {
    let text = String::from_utf8(BASE64_URL.decode(text).ok()?).ok()?;
    let (created_at_ms, row) = text.split_once('.')?;
    Some(Cursor { created_at_ms: created_at_ms.parse().ok()?, row: row.parse().ok()? })
}
