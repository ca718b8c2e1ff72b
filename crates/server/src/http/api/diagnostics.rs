//! `/diagnostics`.

use axum::Json;
use axum::extract::State;

use super::metrics::sample::Snapshot;
use super::wire;
use crate::http::state::Api;

/// Describe the state of the service
///
/// For operators. The response contains no keys, owners or addresses.
#[utoipa::path(get, path = "/api/v1/diagnostics",
    operation_id = "get_diagnostics", tag = "system",
    responses((status = 200, body = api::Diagnostics, description = "The current state")))]
pub async fn get(State(api): State<Api>) -> Json<api::Diagnostics> {
    let store = api.control.store_health().await;
    let snapshot = Snapshot::take(&api).await;
    Json(wire::stats::diagnostics(&api, &snapshot, store))
}
