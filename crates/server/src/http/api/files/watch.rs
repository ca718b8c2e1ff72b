//! `/sandboxes/{id}/files/watch`: changes of files as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use futures_util::{FutureExt, StreamExt};
use providers::{Chain, FileChanges, STREAM_BYTES_MAX};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::api::events::event_stream;
use crate::http::api::wire;
use crate::http::error::Result;
use crate::http::request::{Name, Params};
use crate::http::request_memory::{Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow};

/// Interval of keep-alive comments: proxies cut connections that seem dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Size of the text from which on no further change is added to a piece.
const PIECE_BYTES: usize = 16 * 1024;

/// Query of a watch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WatchParams {
    /// Absolute path of a file, or of a directory whose entries are watched
    #[param(value_type = api::FilePath)]
    path: String,
    /// Watch the whole tree below the directory, new directories included
    #[serde(default)]
    recursive: bool,
}

/// Watch files
///
/// Server-sent events: `event` is the type, `data` a `FileChange`. Types are `created`, `modified`, `deleted`,
/// `attributes`, and `overflow` where changes are missing. The first comment says that the watch is active; further
/// comments follow every 15 seconds. The stream ends when the path or the sandbox no longer exists.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/watch",
    operation_id = "watch_files", tag = "files", params(("id" = String, Path), WatchParams),
    responses(
        (status = 200, body = api::FileChangeEvent, content_type = "text/event-stream", description = "Stream of events"),
        (status = 400, body = api::ErrorBody, description = "Too many directories, a bad path, or the provider does not support watching"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or file")))]
pub async fn watch(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<WatchParams>,
    meter: Meter,
) -> Result<Response> {
    let held = meter.account().reserve_within(STREAM_BYTES_MAX + OUTFLOW_BYTES, WAIT_MAX).await?;
    let changes: FileChanges = api.control.watch_files(&id, &params.path, params.recursive).await?;
    let outflow = Outflow::new(held, STREAM_BYTES_MAX);
    let watch = Watch { api, changes, outflow, begun: false };
    let frames = futures_util::stream::unfold(Some(watch), |watch| async {
        let mut watch = watch?;
        // Without memory, changes wait in the sandbox, and in the end overflow there.
        watch.outflow.room(OUTFLOW_BYTES, 0).await;
        let (text, goes_on) = watch.read().await;
        let counted = text.capacity();
        Some((Ok::<_, Infallible>(watch.outflow.hand_out(text, counted)), goes_on.then_some(watch)))
    });
    Ok(event_stream(Body::from_stream(frames)))
}

/// State of one stream.
struct Watch {
    api: Api,
    changes: FileChanges,
    outflow: Outflow,
    /// True once the client knows that the watch is active.
    begun: bool,
}

impl Watch {
    /// Returns the next piece of the stream, and whether another follows.
    async fn read(&mut self) -> (String, bool) {
        if !std::mem::replace(&mut self.begun, true) {
            return (": watching\n\n".to_owned(), true);
        }
        let mut text = String::new();
        let next = tokio::time::timeout(KEEP_ALIVE, self.changes.next());
        let mut change = match self.api.stop.run_until_cancelled(next).await {
            // The server stops.
            None => return (text, false),
            Some(Err(_)) => return (": still here\n\n".to_owned(), true),
            Some(Ok(change)) => change,
        };
        loop {
            match change {
                None => return (text, false),
                Some(Err(error)) => {
                    tracing::debug!(error = %Chain(&error), "a watch ended");
                    return (text, false);
                }
                Some(Ok(row)) => {
                    let change = wire::file_change(row);
                    let data = serde_json::to_string(&change).expect("a change is JSON");
                    text.push_str(&format!("event: {}\ndata: {data}\n\n", change.kind));
                }
            }
            if text.len() >= PIECE_BYTES {
                return (text, true);
            }
            // Those that are there already go with it.
            let Some(ready) = self.changes.next().now_or_never() else { return (text, true) };
            change = ready;
        }
    }
}
