//! `/admin/keys`: keys of owners.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

use super::wire;
use crate::control::OwnerKey;
use crate::http::error::Result;
use crate::http::middleware::audit::{Subject, SubjectOwner};
use crate::http::request::{Json as Body, Name, Params};
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::list_body::{self, PART, Part};

/// Returns the key as the subject for the audit history.
fn subject(key: &OwnerKey) -> (Extension<Subject>, Extension<SubjectOwner>) {
    (Extension(Subject(key.id.to_string())), Extension(SubjectOwner(key.owner.to_string())))
}

/// Create a key for an owner
///
/// The response is the only one that contains the key. Requests with the key act as its owner and see what is the
/// owner's.
#[utoipa::path(post, path = "/api/v1/admin/keys",
    operation_id = "create_key", tag = "keys", request_body = api::OwnerKeyRequest,
    responses(
        (status = 201, body = api::CreatedOwnerKey, description = "The key, shown this once"),
        (status = 400, body = api::ErrorBody, description = "Invalid owner, name, scopes or lifetime"),
        (status = 429, body = api::ErrorBody, description = "Too many keys")))]
pub async fn create(
    State(api): State<Api>,
    Body(body): Body<api::OwnerKeyRequest>,
) -> Result<((Extension<Subject>, Extension<SubjectOwner>), (StatusCode, Json<api::CreatedOwnerKey>))> {
    let created = api.control.create_key(wire::key_request(body)?).await?;
    Ok((subject(&created.key), wire::created(wire::created_key(created))))
}

/// Query of the list of keys.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// Filter by owner
    owner_id: Option<String>,
}

/// List the keys of owners, newest first
///
/// Revoked and expired keys stay in the list for 30 days. No response contains a key again.
#[utoipa::path(get, path = "/api/v1/admin/keys",
    operation_id = "list_keys", tag = "keys", params(ListParams),
    responses(
        (status = 200, body = Vec<api::OwnerKey>, description = "The keys, without their texts"),
        (status = 400, body = api::ErrorBody, description = "Invalid filter")))]
pub async fn list(State(api): State<Api>, meter: Meter, Params(params): Params<ListParams>) -> Result<Response> {
    let owner = wire::key_filter(params.owner_id.as_deref())?;
    list_body::array(&meter, move |after| {
        let rows = api.control.keys(owner.as_ref(), after, PART);
        let part = Part::of(&rows, |last| (last.created_at, last.id.clone()), wire::owner_key);
        std::future::ready(Ok(part))
    })
    .await
}

/// Revoke a key
///
/// The key opens nothing more, and streams that were opened with it end within a second.
#[utoipa::path(delete, path = "/api/v1/admin/keys/{id}",
    operation_id = "delete_key", tag = "keys", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::Status, description = "Revoked, or revoked before"),
        (status = 404, body = api::ErrorBody, description = "No such key")))]
pub async fn revoke(
    State(api): State<Api>,
    Name(id): Name,
) -> Result<((Extension<Subject>, Extension<SubjectOwner>), Json<api::Status>)> {
    let key = api.control.revoke_key(&id).await?;
    Ok((subject(&key), wire::status("revoked")))
}
