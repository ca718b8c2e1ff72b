//! `/providers`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;

use super::wire;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name};
use crate::http::state::Api;

/// List providers with their last check
#[utoipa::path(get, path = "/api/v1/providers",
    operation_id = "list_providers", tag = "providers",
    responses((status = 200, body = Vec<api::ProviderHealth>, description = "The enabled providers")))]
pub async fn list(State(api): State<Api>) -> Json<Vec<api::ProviderHealth>> {
    Json(healths(&api))
}

/// Returns the last check of each provider.
pub fn healths(api: &Api) -> Vec<api::ProviderHealth> {
    let entries = api.control.registry().entries();
    entries.iter().map(|entry| wire::provider_health(entry, &entry.checked())).collect()
}

/// Get a provider
#[utoipa::path(get, path = "/api/v1/providers/{name}",
    operation_id = "get_provider", tag = "providers", params(("name" = String, Path)),
    responses(
        (status = 200, body = api::ProviderDetail, description = "Capabilities, backend and limits of the provider"),
        (status = 404, body = api::ErrorBody, description = "No such provider")))]
pub async fn get(State(api): State<Api>, Name(name): Name) -> Result<Json<api::ProviderDetail>> {
    Ok(Json(wire::provider_detail(&api.control.provider(&name).await?)))
}

/// Check every provider now
#[utoipa::path(post, path = "/api/v1/providers/test",
    operation_id = "test_providers", tag = "providers",
    request_body = api::Empty,
    responses((status = 200, body = BTreeMap<String, bool>, description = "Health by provider: true if it can start a sandbox")))]
pub async fn test(State(api): State<Api>, Body(api::Empty {}): Body<api::Empty>) -> Json<BTreeMap<String, bool>> {
    let checked = api.control.test_providers().await;
    let names = api.control.registry().entries().iter().map(|entry| entry.provider.name().to_owned());
    Json(names.zip(checked.into_iter().map(|checked| checked.health.error.is_none())).collect())
}
