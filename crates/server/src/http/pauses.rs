//! `/sandboxes/{id}/pause` and `/sandboxes/{id}/resume`.

use axum::Json;
use axum::extract::State;

use super::error::Result;
use super::request::{Json as Body, Name};
use super::sandboxes::as_it_is;
use super::state::Api;
use super::wire;
use crate::control::Pause;

/// Pause a sandbox
///
/// Its processes stop where they are, and go on with the next request that needs it: an exec, a file, a port, a preview.
/// Its lifetime runs on. With `reclaim` memory of it is handed back to the system, and `reclaimed` has the figures; with
/// `to_disk` it is written to disk, and takes no memory until it goes on.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/pause",
    operation_id = "pause_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    request_body = api::PauseRequest,
    responses(
        (status = 200, body = api::Sandbox, description = "It is paused; also when repeated"),
        (status = 400, body = api::ErrorBody, description = "Its provider cannot pause it, hand back its memory, or write it to disk"),
        (status = 404, body = api::ErrorBody, description = "Not known, destroyed or expired"),
        (status = 409, body = api::ErrorBody, description = "Requests use it, it is being made or destroyed, or a request had it go on while memory was handed back"),
        (status = 503, body = api::ErrorBody, description = "Its processes do not stop in time, and go on; or the memory of others is being handed back"),
        (status = 507, body = api::ErrorBody, description = "No room for it on disk; it is paused")))]
pub async fn pause(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::PauseRequest>,
) -> Result<Json<api::Sandbox>> {
    let api::PauseRequest { force, reclaim, to_disk } = body;
    let (sandbox, reclaimed) = api.control.pause(&id, Pause { force, reclaim, to_disk }).await?;
    let mut sandbox = as_it_is(&api, &sandbox);
    sandbox.reclaimed = reclaimed.map(wire::reclaimed);
    Ok(Json(sandbox))
}

/// Resume a sandbox
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/resume",
    operation_id = "resume_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::Sandbox, description = "It runs; also when it did before"),
        (status = 400, body = api::ErrorBody, description = "Its provider cannot pause sandboxes"),
        (status = 404, body = api::ErrorBody, description = "Not known, destroyed or expired"),
        (status = 409, body = api::ErrorBody, description = "It is being made or destroyed")))]
pub async fn resume(State(api): State<Api>, Name(id): Name) -> Result<Json<api::Sandbox>> {
    Ok(Json(wire::sandbox(&api.control.resume(&id).await?)))
}
