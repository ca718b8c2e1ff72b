//! `/quotas` and `/admin/quotas`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::wire;
use crate::control::{Error, Resource};
use crate::http::error::Result;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Name};
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::list_body::{self, PART, Part};

/// List owner quotas
#[utoipa::path(get, path = "/api/v1/quotas",
    operation_id = "list_quotas", tag = "quotas",
    responses((status = 200, body = Vec<api::OwnerQuota>, description = "All quotas, by owner")))]
pub async fn list(State(api): State<Api>, meter: Meter) -> Result<Response> {
    list_body::array(&meter, move |after| {
        let api = api.clone();
        async move {
            let rows = api.control.quotas(after.as_ref(), PART).await?;
            Ok(Part::of(&rows, |last| last.owner.clone(), wire::owner_quota))
        }
    })
    .await
}

/// Count owner quotas
#[utoipa::path(get, path = "/api/v1/quotas/summary",
    operation_id = "get_quota_summary", tag = "quotas",
    responses((status = 200, body = api::QuotaSummary, description = "Number of quotas that set each limit; names no owner")))]
pub async fn summary(State(api): State<Api>) -> Result<Json<api::QuotaSummary>> {
    Ok(Json(wire::quota_summary(api.control.quota_summary().await?)))
}

/// Get an owner's quota
#[utoipa::path(get, path = "/api/v1/quotas/{owner_id}",
    operation_id = "get_quota", tag = "quotas", params(("owner_id" = String, Path,
        description = "Any owner except `summary`, which is reserved")),
    responses(
        (status = 200, body = api::OwnerQuota, description = "The quota"),
        (status = 400, body = api::ErrorBody, description = "Invalid owner id"),
        (status = 404, body = api::ErrorBody, description = "The owner has no quota")))]
pub async fn get(State(api): State<Api>, viewer: Viewer, Name(name): Name) -> Result<Json<api::OwnerQuota>> {
    let owner = wire::owner_id(&name)?;
    if !viewer.sees(&owner) {
        return Err(Error::NotFound(Resource::Quota, name).into());
    }
    Ok(Json(wire::owner_quota(&api.control.quota(&owner).await?)))
}

/// Save an owner's quota
#[utoipa::path(put, path = "/api/v1/quotas/{owner_id}",
    operation_id = "put_quota", tag = "quotas", params(("owner_id" = String, Path,
        description = "Any owner except `summary`, which is reserved")),
    request_body = api::QuotaRequest,
    responses(
        (status = 200, body = api::OwnerQuota, description = "The quota as saved"),
        (status = 400, body = api::ErrorBody, description = "Invalid owner id, or a limit out of range"),
        (status = 429, body = api::ErrorBody, description = "Too many quotas")))]
pub async fn save(
    State(api): State<Api>,
    Name(name): Name,
    Body(body): Body<api::QuotaRequest>,
) -> Result<Json<api::OwnerQuota>> {
    let owner = wire::owner_id(&name)?;
    let quota = wire::quota(&body)?;
    Ok(Json(wire::owner_quota(&api.control.save_quota(&owner, &quota).await?)))
}

/// Get an owner's usage and limits
#[utoipa::path(get, path = "/api/v1/quotas/{owner_id}/usage",
    operation_id = "get_quota_usage", tag = "quotas", params(("owner_id" = String, Path,
        description = "Any owner except `summary`, which is reserved")),
    responses(
        (status = 200, body = api::OwnerUsage, description = "Usage and limits, also for an owner without a quota"),
        (status = 400, body = api::ErrorBody, description = "Invalid owner id")))]
pub async fn usage(State(api): State<Api>, viewer: Viewer, Name(name): Name) -> Result<Json<api::OwnerUsage>> {
    let owner = wire::owner_id(&name)?;
    if !viewer.sees(&owner) {
        return Err(Error::NotFound(Resource::Quota, name).into());
    }
    Ok(Json(wire::usage(&api.control.usage(&owner).await?)))
}

/// Delete an owner's quota
#[utoipa::path(delete, path = "/api/v1/quotas/{owner_id}",
    operation_id = "delete_quota", tag = "quotas", params(("owner_id" = String, Path,
        description = "Any owner except `summary`, which is reserved")),
    responses(
        (status = 200, body = api::Status, description = "Deleted; the global limits apply again"),
        (status = 400, body = api::ErrorBody, description = "Invalid owner id"),
        (status = 404, body = api::ErrorBody, description = "The owner has no quota")))]
pub async fn delete(State(api): State<Api>, Name(name): Name) -> Result<Json<api::Status>> {
    api.control.delete_quota(&wire::owner_id(&name)?).await?;
    Ok(wire::status("deleted"))
}
