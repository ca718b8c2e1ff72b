//! `/workers`, `/worker` and `/admin/workers`.

use axum::Json;
use axum::extract::State;

use super::wire;
use crate::http::error::Result;
use crate::http::middleware::auth::Worker;
use crate::http::request::{Json as Body, Name, Names};
use crate::http::state::Api;

/// List workers
#[utoipa::path(get, path = "/api/v1/workers",
    operation_id = "list_workers", tag = "workers",
    responses((status = 200, description = "All registered workers, this server included", body = Vec<api::Worker>)))]
pub async fn list(State(api): State<Api>) -> Result<Json<Vec<api::Worker>>> {
    Ok(Json(api.control.workers().await?.iter().map(wire::worker).collect()))
}

/// Get a worker
#[utoipa::path(get, path = "/api/v1/workers/{worker}",
    operation_id = "get_worker", tag = "workers", params(("worker" = String, Path)),
    responses(
        (status = 200, description = "The worker", body = api::Worker),
        (status = 404, description = "No such worker", body = api::ErrorBody)))]
pub async fn get(State(api): State<Api>, Name(id): Name) -> Result<Json<api::Worker>> {
    Ok(Json(wire::worker(&api.control.worker(&id).await?)))
}

/// Register a worker, or renew its registration
#[utoipa::path(post, path = "/api/v1/worker/{worker}/heartbeat",
    operation_id = "send_heartbeat", tag = "workers", params(("worker" = String, Path)),
    request_body = api::Heartbeat,
    responses(
        (status = 200, description = "The worker as registered", body = api::Worker),
        (status = 400, description = "Invalid request", body = api::ErrorBody),
        (status = 401, description = "Wrong credential for this worker", body = api::ErrorBody),
        (status = 429, description = "Too many workers", body = api::ErrorBody)))]
pub async fn heartbeat(
    State(api): State<Api>,
    worker: Worker,
    Body(body): Body<api::Heartbeat>,
) -> Result<Json<api::Worker>> {
    let id = wire::worker_id("X-Worker-ID", &worker.id)?;
    let beat = wire::heartbeat(&id, body)?;
    Ok(Json(wire::worker(&api.control.heartbeat(&id, beat).await?)))
}

/// Renew a worker's lease on a sandbox
#[utoipa::path(post, path = "/api/v1/worker/{worker}/leases/{resource}/renew",
    operation_id = "renew_lease", tag = "workers",
    params(("worker" = String, Path), ("resource" = String, Path)),
    request_body = api::RenewRequest,
    responses(
        (status = 200, description = "The renewed lease", body = api::Renewed),
        (status = 400, description = "Invalid lifetime", body = api::ErrorBody),
        (status = 401, description = "Wrong credential for this worker", body = api::ErrorBody),
        (status = 404, description = "The worker never held the lease, or released it", body = api::ErrorBody),
        (status = 409, description = "The lease is held by another worker, or has expired", body = api::ErrorBody)))]
pub async fn renew(
    State(api): State<Api>,
    worker: Worker,
    names: Names<(String, String)>,
    Body(body): Body<api::RenewRequest>,
) -> Result<Json<api::Renewed>> {
    let id = wire::worker_id("X-Worker-ID", &worker.id)?;
    let Names((_, resource)) = names;
    let lease = api.control.renew_lease(&id, &resource, wire::lease_ttl(&body)?).await?;
    Ok(Json(wire::renewed(&lease)))
}

/// Register a worker, or correct its registration
#[utoipa::path(post, path = "/api/v1/admin/workers/{worker}/heartbeat",
    operation_id = "register_worker", tag = "workers",
    params(("worker" = String, Path)), request_body = api::AdminHeartbeat,
    responses(
        (status = 200, description = "The worker as registered", body = api::Worker),
        (status = 400, description = "Invalid request", body = api::ErrorBody),
        (status = 429, description = "Too many workers", body = api::ErrorBody)))]
pub async fn admin_heartbeat(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::AdminHeartbeat>,
) -> Result<Json<api::Worker>> {
    let id = wire::worker_id("worker", &id)?;
    let beat = wire::heartbeat(&id, body.into())?;
    Ok(Json(wire::worker(&api.control.heartbeat(&id, beat).await?)))
}

/// Remove a worker
#[utoipa::path(delete, path = "/api/v1/admin/workers/{worker}",
    operation_id = "delete_worker", tag = "workers", params(("worker" = String, Path)),
    responses(
        (status = 200, description = "Removed until its next heartbeat", body = api::Status),
        (status = 404, description = "No such worker", body = api::ErrorBody),
        (status = 409, description = "The worker is this server, or still holds sandboxes", body = api::ErrorBody)))]
pub async fn delete(State(api): State<Api>, Name(id): Name) -> Result<Json<api::Status>> {
    api.control.delete_worker(&id).await?;
    Ok(wire::status("deleted"))
}
