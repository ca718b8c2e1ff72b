//! `/sandboxes/stats` and `/sandboxes/{id}/stats`: the resources that sandboxes use.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::events::event_stream;
use super::wire;
use crate::control::SandboxStats;
use crate::http::caller::Owner;
use crate::http::error::Result;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Name, Params};
use crate::http::request_memory::{Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow};
use crate::http::stream::list_body;

/// Interval of a stream.
const EVERY: Duration = Duration::from_secs(1);
/// Memory held for the reader of a stream.
const READER_BYTES: usize = OUTFLOW_BYTES + 8 * 1024;
/// Rows of the store that are in memory at once while a list is made.
const ROWS: u32 = 100;
/// Memory of one sandbox in a list.
const ENTRY_BYTES: usize = 512;

/// Query of the resources that a sandbox uses.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StatsParams {
    /// `true` for a stream of server-sent events, one per second until the sandbox ends
    stream: Option<bool>,
}

/// Get a sandbox's resource usage
///
/// CPU shares cover the time since the previous measurement, whichever request made it. With `stream=true` the response
/// is server-sent events of the type `stats`, whose data is the same JSON.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/stats",
    operation_id = "get_sandbox_stats", tag = "sandboxes", params(("id" = String, Path), StatsParams),
    responses(
        (status = 200, description = "Resource usage of the sandbox; null where the provider cannot measure",
            content((api::SandboxStats = "application/json"), (api::StatsEvent = "text/event-stream"))),
        (status = 400, body = api::ErrorBody, description = "`stream` is not a boolean"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "Its worker does not answer, or the caller holds too much of \
                                                             the server's memory")))]
pub async fn get(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    Params(params): Params<StatsParams>,
) -> Result<Response> {
    let first = api.control.stats_of(&id).await?;
    if params.stream != Some(true) {
        return Ok(Json(wire::sandbox_stats(&first)).into_response());
    }
    let outflow = Outflow::new(meter.account().reserve(READER_BYTES)?, 0);
    let watch = Watch { api, id, next: Some(first), outflow };
    let frames = futures_util::stream::unfold(watch, |mut watch| async {
        let frame = watch.frame().await?;
        let counted = frame.len();
        Some((Ok::<_, Infallible>(watch.outflow.hand_out(frame, counted)), watch))
    });
    Ok(event_stream(Body::from_stream(frames)))
}

/// State of a stream.
struct Watch {
    api: Api,
    id: String,
    /// Look that is still to be sent; `None` before the next one.
    next: Option<SandboxStats>,
    outflow: Outflow,
}

impl Watch {
    /// Returns the next event; `None` once the sandbox does not run, or the server stops.
    async fn frame(&mut self) -> Option<String> {
        // A client that does not read is not looked for.
        self.outflow.room(OUTFLOW_BYTES, 0).await;
        let stats = match self.next.take() {
            Some(first) => first,
            None => {
                self.api.stop.run_until_cancelled(tokio::time::sleep(EVERY)).await?;
                self.api.control.stats_of(&self.id).await.ok()?
            }
        };
        let data = serde_json::to_string(&wire::sandbox_stats(&stats)).expect("statistics are JSON");
        Some(format!("event: stats\ndata: {data}\n\n"))
    }
}

/// List the resource usage of all active sandboxes
///
/// Statistics of all active sandboxes, newest first, without disk usage. `tidebox top` requests them every second.
#[utoipa::path(get, path = "/api/v1/sandboxes/stats",
    operation_id = "list_sandbox_stats", tag = "sandboxes",
    params(
        ("owner_id" = Option<String>, Query, description = "Filter by owner"),
        ("provider" = Option<String>, Query, description = "Filter by provider"),
        ("metadata.<key>" = Option<String>, Query, description = "Filter by the value of the label `<key>`")),
    responses(
        (status = 200, description = "Resource usage of each sandbox", body = Vec<api::SandboxStats>),
        (status = 400, description = "Invalid filter", body = api::ErrorBody)))]
pub async fn list(
    State(api): State<Api>,
    Viewer(Owner(viewer)): Viewer,
    meter: Meter,
    Params(query): Params<Vec<(String, String)>>,
) -> Result<Response> {
    let filter = wire::stats_filter(query)?;
    let mut held = meter.account().reserve_within(list_body::page_bytes(ROWS), WAIT_MAX).await?;
    let all = api.control.stats_of_all(viewer, filter).await?;
    let bytes = all.len().saturating_mul(ENTRY_BYTES);
    held.grow_regardless(bytes);
    Ok(list_body::page(held, bytes, all, wire::sandbox_stats))
}
