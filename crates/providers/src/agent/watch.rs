//! Changes of files.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use guest_protocol::{WATCH_ROW_BYTES_MAX, WatchFiles, WatchRow};

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

async fn next(lines: &mut Lines) -> Result<Option<WatchRow>> {
    let Some(line) = lines.next().await? else { return Ok(None) };
    let row = serde_json::from_slice(&line).map_err(|error| Error::failed(WATCH, error))?;
    if matches!(&row, WatchRow::Change(change) if !can_be_path(&change.path)) {
        return Err(Error::failed(WATCH, "the agent returned an invalid path"));
    }
    Ok(Some(row))
}
