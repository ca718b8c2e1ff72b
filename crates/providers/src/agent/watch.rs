//! Changes of files.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use guest_protocol::{WATCH_ROW_BYTES_MAX, WATCHER_BYTES_MAX, WATCHER_ROWS_MAX, WatchFiles, WatchRow, Watcher};
use http::Method;

use super::array::Bounds;
use super::connection::Connection;
use super::lines::Lines;
use super::request::SHORT_WAIT;
use super::search::can_be_path;
use crate::{Error, FileChanges, Result};

const WATCH: &str = "watch files";

/// Begins to watch; see [`crate::Guest::watch`].
pub(super) async fn watch(connection: &Arc<Connection>, request: &WatchFiles) -> Result<FileChanges> {
    let permit = connection.read_permit(SHORT_WAIT).await?;
    let lines = Lines::of(WATCH, connection, "/files/watch", request, WATCH_ROW_BYTES_MAX).await?;
    let changes = stream::unfold(Some((lines, permit)), |state| async move {
        let (mut lines, permit) = state?;
        match next(&mut lines).await {
            Ok(Some(change)) => Some((Ok(change), Some((lines, permit)))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(changes.boxed())
}

const WATCHER: &str = "take the changes of a watcher";
/// The largest answer with all changes of a watcher, in bytes: each byte of a path as six, and the rest of
/// a row.
const CHANGES_BYTES_MAX: usize = 6 * WATCHER_BYTES_MAX + 256 * WATCHER_ROWS_MAX;

/// Begins a watch whose changes are kept; see [`crate::Guest::add_watcher`].
pub(super) async fn add(connection: &Connection, request: &WatchFiles) -> Result<u64> {
    let added: Watcher = connection.ask(WATCH, Method::POST, "/files/watchers/add", request, SHORT_WAIT).await?;
    Ok(added.watcher)
}

/// Takes the changes of a watcher; see [`crate::Guest::watcher_changes`].
pub(super) async fn take(connection: &Connection, watcher: Watcher) -> Result<Vec<WatchRow>> {
    let bounds = Bounds { text: CHANGES_BYTES_MAX, count: WATCHER_ROWS_MAX + 1 };
    let mut rows = Vec::new();
    let gathered = connection.gather(WATCHER, "/files/watchers/take", &watcher, SHORT_WAIT, bounds, |row| {
        let row: WatchRow = checked(row)?;
        let held = size_of::<WatchRow>() + if let WatchRow::Change(change) = &row { change.path.len() } else { 0 };
        rows.push(row);
        Ok(held)
    });
    gathered.await?;
    Ok(rows)
}

/// Ends a watcher.
pub(super) async fn remove(connection: &Connection, watcher: Watcher) -> Result<()> {
    connection.order("end a watcher", "/files/watchers/remove", &watcher, SHORT_WAIT).await
}

/// Refuses a row with a path that cannot be.
fn checked(row: WatchRow) -> Result<WatchRow> {
    if matches!(&row, WatchRow::Change(change) if !can_be_path(&change.path)) {
        return Err(Error::failed(WATCH, "the agent returned an invalid path"));
    }
    Ok(row)
}

async fn next(lines: &mut Lines) -> Result<Option<WatchRow>> {
    let Some(line) = lines.next().await? else { return Ok(None) };
    checked(serde_json::from_slice(&line).map_err(|error| Error::failed(WATCH, error))?).map(Some)
}
