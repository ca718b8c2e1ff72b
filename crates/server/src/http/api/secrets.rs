//! `/secrets`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::wire;
use crate::control::{Error, Resource};
use crate::http::caller::Owner;
use crate::http::error::Result;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Name};
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::list_body::{self, PART, Part};

/// List secrets by name
#[utoipa::path(get, path = "/api/v1/secrets",
    operation_id = "list_secrets", tag = "secrets",
    responses((status = 200, body = Vec<api::Secret>, description = "The secrets, without their values")))]
pub async fn list(State(api): State<Api>, Viewer(Owner(viewer)): Viewer, meter: Meter) -> Result<Response> {
    list_body::array(&meter, move |after| {
        let (api, viewer) = (api.clone(), viewer.clone());
        async move {
            let rows = api.control.stored_secrets(after.as_ref(), PART).await?;
            let Part { rows, next } =
                Part::of(&rows, |last| last.name.clone(), |row| wire::secret_for(viewer.as_ref(), row));
            Ok(Part { rows: rows.into_iter().flatten().collect(), next })
        }
    })
    .await
}

/// Get a secret
#[utoipa::path(get, path = "/api/v1/secrets/{name}",
    operation_id = "get_secret", tag = "secrets", params(("name" = String, Path)),
    responses(
        (status = 200, body = api::Secret, description = "The secret, without its value"),
        (status = 404, body = api::ErrorBody, description = "No such secret")))]
pub async fn get(State(api): State<Api>, Viewer(Owner(viewer)): Viewer, Name(name): Name) -> Result<Json<api::Secret>> {
    let secret = wire::secret_for(viewer.as_ref(), &api.control.secret(&name).await?);
    Ok(Json(secret.ok_or_else(|| Error::NotFound(Resource::Secret, name))?))
}

/// Save a secret
///
/// Replaces a secret of the same name, starting with the next request. No response ever contains the value.
#[utoipa::path(put, path = "/api/v1/secrets/{name}",
    operation_id = "put_secret", tag = "secrets",
    params(("name" = api::SecretName, Path)), request_body = api::SecretRequest,
    responses(
        (status = 200, body = api::Secret, description = "The secret as saved, without its value"),
        (status = 400, body = api::ErrorBody, description = "Invalid name, value, hosts or header"),
        (status = 429, body = api::ErrorBody, description = "Too many quotas")))]
pub async fn save(
    State(api): State<Api>,
    Name(name): Name,
    Body(body): Body<api::SecretRequest>,
) -> Result<Json<api::Secret>> {
    let binding = wire::secret_binding(&body)?;
    Ok(Json(wire::secret(&api.control.save_secret(&name, binding, &body.value).await?)))
}

/// Delete a secret
#[utoipa::path(delete, path = "/api/v1/secrets/{name}",
    operation_id = "delete_secret", tag = "secrets", params(("name" = String, Path)),
    responses(
        (status = 200, body = api::Status, description = "Deleted; later requests are sent without it"),
        (status = 404, body = api::ErrorBody, description = "No such secret")))]
pub async fn delete(State(api): State<Api>, Name(name): Name) -> Result<Json<api::Status>> {
    api.control.delete_secret(&name).await?;
    Ok(wire::status("deleted"))
}
