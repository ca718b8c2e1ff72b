//! Search and replacement in the content of files.

use std::sync::Arc;
use std::time::Duration;

use guest_protocol::{
    PATH_BYTES_MAX, ReplaceRow, SEARCH_LINE_BYTES_MAX, SEARCH_ROW_BYTES_MAX, SEARCH_TEXT_BYTES_MAX, SearchRow,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::Connection;
use super::lines::Lines;
use super::request::{SHORT_WAIT, within};
use super::wire::failure;
use crate::{Error, Replace, ReplaceResult, Result, Search, SearchEnd, SearchMatch, SearchResult};

const SEARCH: &str = "search in files";
const REPLACE: &str = "replace in files";

/// Sends a request, and hands its rows to `take` until that returns the account at the end. Each row
/// comes within the time of the whole.
async fn rows<T: DeserializeOwned>(
    action: &'static str,
    connection: &Arc<Connection>,
    path: &'static str,
    request: &impl Serialize,
    time_ms: u64,
    mut take: impl FnMut(T) -> Result<Option<SearchEnd>>,
) -> Result<SearchEnd> {
    let gather = async {
        let mut lines = Lines::of(action, connection, path, request, SEARCH_ROW_BYTES_MAX).await?;
        while let Some(line) = lines.next().await? {
            let row = serde_json::from_slice(&line).map_err(|error| Error::failed(action, error))?;
            if let Some(end) = take(row)? {
                return Ok(end);
            }
        }
        Err(Error::failed(action, "the agent's response was cut off"))
    };
    within(action, Duration::from_millis(time_ms) + SHORT_WAIT, gather).await
}

fn too_much(action: &'static str) -> Error {
    Error::failed(action, "the agent returned more than requested")
}

/// Returns whether an agent may give `path` as that of a file.
pub(super) fn can_be_path(path: &str) -> bool {
    path.starts_with('/') && path.len() <= 2 * PATH_BYTES_MAX && !path.contains('\0')
}

/// Returns the lines of a match with those around it.
fn lines(found: &SearchMatch) -> impl Iterator<Item = &String> {
    found.before.iter().chain(&found.after).chain([&found.text])
}

/// Searches; see [`crate::Guest::search`].
pub(super) async fn search(connection: &Arc<Connection>, request: &Search) -> Result<SearchResult> {
    let mut matches = Vec::new();
    let mut text = 0;
    let context = usize::try_from(request.context).unwrap_or(usize::MAX);
    let take = |row| match row {
        SearchRow::End(end) => Ok(Some(end)),
        SearchRow::Match(found) => {
            let is_more = matches.len() >= request.matches_max as usize
                || found.before.len() > context
                || found.after.len() > context
                // Each byte that is no UTF-8 has become three.
                || lines(&found).any(|line| line.len() > 3 * SEARCH_LINE_BYTES_MAX);
            text += lines(&found).map(String::len).sum::<usize>() + found.path.len();
            // The agent stops after the row that reaches its bound, and adds what is after that.
            if is_more || text > 4 * SEARCH_TEXT_BYTES_MAX || !can_be_path(&found.path) {
                return Err(too_much(SEARCH));
            }
            matches.push(found);
            Ok(None)
        }
    };
    let end = rows(SEARCH, connection, "/files/search", request, request.time_ms, take).await?;
    matches.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(SearchResult { matches, end })
}

/// Replaces; see [`crate::Guest::replace`].
pub(super) async fn replace(connection: &Arc<Connection>, request: &Replace) -> Result<ReplaceResult> {
    let mut files = Vec::new();
    let mut text = 0;
    let take = |row| match row {
        ReplaceRow::End(end) => Ok(Some(end)),
        ReplaceRow::Failed(why) => Err(failure(REPLACE, why)),
        ReplaceRow::File(file) => {
            text += file.path.len();
            let is_more = files.len() >= request.files_max as usize || text > 4 * SEARCH_TEXT_BYTES_MAX;
            if is_more || !can_be_path(&file.path) {
                return Err(too_much(REPLACE));
            }
            files.push(file);
            Ok(None)
        }
    };
    let end = rows(REPLACE, connection, "/files/replace", request, request.time_ms, take).await?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(ReplaceResult { files, end })
}
