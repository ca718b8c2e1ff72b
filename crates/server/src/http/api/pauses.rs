//! `/sandboxes/{id}/pause` and `/sandboxes/{id}/resume`.

use axum::Json;
use axum::extract::State;

use super::sandboxes::as_it_is;
use super::wire;
use crate::control::Pause;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name};
use crate::http::state::Api;

/// Pause a sandbox
///
/// Freezes the processes until the next request that needs them: an exec, a file, a port or a preview. The lifetime
/// keeps running. `reclaim` returns memory to the system, and `reclaimed` reports how much. `to_disk` writes the
/// sandbox to disk, so that it takes no memory until it resumes.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/pause",
    operation_id = "pause_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    request_body = api::PauseRequest,
    responses(
        (status = 200, body = api::Sandbox, description = "Paused, or already paused"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support pausing, reclaiming, or writing to disk"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired"),
        (status = 409, body = api::ErrorBody, description = "Requests use the sandbox, it is being created or \
                                                             destroyed, or a request resumed it during the reclaim"),
        (status = 503, body = api::ErrorBody, description = "The processes did not freeze in time and keep running, or \
                                                             the memory of other sandboxes is being reclaimed"),
        (status = 507, body = api::ErrorBody, description = "Not enough disk space; the sandbox is paused")))]
pub async fn pause(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::PauseRequest>,
) -> Result<Json<api::Sandbox>> {
    let api::PauseRequest { force, reclaim, to_disk } = body;
    let (sandbox, reclaimed) = api.control.pause(&id, Pause { force, reclaim, to_disk, keep: None }).await?;
    let mut sandbox = as_it_is(&api, &sandbox);
    sandbox.reclaimed = reclaimed.map(wire::reclaimed);
    Ok(Json(sandbox))
}

/// Resume a sandbox
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/resume",
    operation_id = "resume_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::Sandbox, description = "Running, or already running"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support pausing"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is being created or destroyed")))]
pub async fn resume(State(api): State<Api>, Name(id): Name) -> Result<Json<api::Sandbox>> {
    Ok(Json(wire::sandbox(&api.control.resume(&id).await?)))
}
