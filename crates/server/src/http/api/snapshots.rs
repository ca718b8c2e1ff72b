//! `/snapshots`, `/sandboxes/{id}/snapshots` and `/sandboxes/{id}/fork`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

use super::wire;
use crate::control::ForkRequest;
use crate::control::SnapshotCursor;
use crate::control::SnapshotFilter;
use crate::http::caller::Owner;
use crate::http::error::Result;
use crate::http::middleware::audit::Subject;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Name, Params};
use crate::http::request_memory::{LIST_BYTES, Meter};
use crate::http::state::Api;
use crate::http::stream::list_body::{self, PART, Part};

/// Take a snapshot of a sandbox
///
/// The snapshot holds the sandbox's files as of one moment. The sandbox keeps running, or stays paused.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/snapshots",
    operation_id = "create_snapshot", tag = "snapshots", params(("id" = String, Path)),
    request_body = api::SnapshotRequest,
    responses(
        (status = 201, body = api::SnapshotSummary, description = "The snapshot"),
        (status = 400, body = api::ErrorBody, description = "Invalid name, or the provider does not support snapshots"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is being created or destroyed"),
        (status = 429, body = api::ErrorBody, description = "Too many quotas"),
        (status = 500, body = api::ErrorBody, description = "The provider failed"),
        (status = 503, body = api::ErrorBody, description = "Too many snapshots are being taken, or the provider is not ready"),
        (status = 507, body = api::ErrorBody, description = "Not enough disk space")))]
pub async fn take(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::SnapshotRequest>,
) -> Result<(Extension<Subject>, (StatusCode, Json<api::SnapshotSummary>))> {
    let snapshot = api.control.take_snapshot(&id, wire::snapshot_request(body)).await?;
    Ok((Extension(Subject(snapshot.id.to_string())), wire::created(of(&api, &snapshot))))
}

/// Fork a sandbox
///
/// Creates all copies or none. The copies have the sandbox's files, size, owner, egress policy and labels; its
/// processes keep running in them only if the provider has the capability `snapshot_memory`.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/fork",
    operation_id = "fork_sandbox", tag = "snapshots", params(("id" = String, Path)),
    request_body = api::ForkRequest,
    responses(
        (status = 201, body = Vec<api::Sandbox>, description = "The copies"),
        (status = 400, body = api::ErrorBody, description = "Invalid count, or the provider does not support snapshots"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is being created or destroyed"),
        (status = 429, body = api::ErrorBody, description = "A limit is reached, or a value is above its maximum"),
        (status = 500, body = api::ErrorBody, description = "The provider failed"),
        (status = 503, body = api::ErrorBody, description = "No provider is healthy"),
        (status = 507, body = api::ErrorBody, description = "Not enough disk space for the copies")))]
pub async fn fork(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    Body(body): Body<api::ForkRequest>,
) -> Result<(StatusCode, Json<Vec<api::Sandbox>>)> {
    meter.hold(LIST_BYTES).await?;
    let request = ForkRequest { asker: Some(meter.account().asker()), ..wire::fork_request(body)? };
    let copies = api.control.fork(&id, request).await?;
    Ok(wire::created(copies.iter().map(wire::sandbox).collect()))
}

/// Query of the list of snapshots.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// Filter by owner
    owner_id: Option<String>,
    /// Filter by sandbox
    sandbox_id: Option<String>,
}

/// List the snapshots, newest first
///
/// Without a filter, the list ends with the snapshots that the server itself took: `kind` is `warm_pool` for entries of
/// the warm pool, and `image` for the images of providers.
#[utoipa::path(get, path = "/api/v1/snapshots",
    operation_id = "list_snapshots", tag = "snapshots", params(ListParams),
    responses(
        (status = 200, body = Vec<api::SnapshotSummary>,
            description = "Snapshots of all providers; empty if no provider has the capability `snapshots`"),
        (status = 400, body = api::ErrorBody, description = "Invalid filter")))]
pub async fn list(
    State(api): State<Api>,
    Viewer(Owner(viewer)): Viewer,
    meter: Meter,
    Params(params): Params<ListParams>,
) -> Result<Response> {
    let mut filter = wire::snapshot_filter(params.owner_id.as_deref(), params.sandbox_id.as_deref())?;
    if let Some(viewer) = viewer {
        if filter.owner.as_ref().is_some_and(|owner| *owner != viewer) {
            return Ok(Json(Vec::<api::SnapshotSummary>::new()).into_response());
        }
        filter.owner = Some(viewer);
    }
    list_body::array(&meter, move |after: Option<SnapshotCursor>| {
        let api = api.clone();
        let filter = filter.clone();
        async move {
            let rows = api.control.snapshots(&filter, after.as_ref(), PART).await?;
            let mut part = Part::of(&rows, cursor_at, |row| of(&api, row));
            // No owner and no sandbox has those.
            if part.next.is_none() && filter == SnapshotFilter::default() {
                part.rows.extend(api.control.warm_snapshots().iter().map(|taken| wire::warm_snapshot(taken)));
                part.rows.extend(images(&api));
            }
            Ok(part)
        }
    })
    .await
}

fn cursor_at(last: &crate::control::Snapshot) -> SnapshotCursor {
    SnapshotCursor { created_at: last.created_at, id: last.id.clone() }
}

fn of(api: &Api, row: &crate::control::Snapshot) -> api::SnapshotSummary {
    let entry = api.control.registry().get(&row.provider);
    wire::snapshot(row, entry.and_then(|entry| entry.provider.kernel()))
}

/// Returns the snapshots of images that providers have taken by themselves.
fn images(api: &Api) -> Vec<api::SnapshotSummary> {
    let mut images = Vec::new();
    for entry in api.control.registry().entries() {
        let name = entry.provider.name();
        let taken = entry.provider.image_snapshots().unwrap_or_default().snapshots;
        images.extend(taken.into_iter().map(|snapshot| wire::image_snapshot(name, snapshot)));
    }
    images
}

/// Get a snapshot
#[utoipa::path(get, path = "/api/v1/snapshots/{id}",
    operation_id = "get_snapshot", tag = "snapshots", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::SnapshotSummary, description = "The snapshot"),
        (status = 400, body = api::ErrorBody, description = "Pool mode is on: users share boxes"),
        (status = 404, body = api::ErrorBody, description = "No such snapshot")))]
pub async fn get(
    State(api): State<Api>,
    Viewer(Owner(viewer)): Viewer,
    Name(id): Name,
) -> Result<Json<api::SnapshotSummary>> {
    Ok(Json(of(&api, &api.control.snapshot(&id, viewer.as_ref()).await?)))
}

/// Remove a snapshot
#[utoipa::path(delete, path = "/api/v1/snapshots/{id}",
    operation_id = "delete_snapshot", tag = "snapshots", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::Status, description = "Removed; sandboxes started from it keep running"),
        (status = 400, body = api::ErrorBody, description = "Pool mode is on: users share boxes"),
        (status = 404, body = api::ErrorBody, description = "No such snapshot"),
        (status = 500, body = api::ErrorBody, description = "The provider failed; the server retries the removal")))]
pub async fn delete(
    State(api): State<Api>,
    Viewer(Owner(viewer)): Viewer,
    Name(id): Name,
) -> Result<Json<api::Status>> {
    api.control.delete_snapshot(&id, viewer.as_ref()).await?;
    Ok(wire::status("deleted"))
}
