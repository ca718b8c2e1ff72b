//! `/pool/status`.

use axum::Json;
use axum::extract::State;

use super::error::Result;
use super::state::Api;

/// Show how full the shared boxes are
#[utoipa::path(get, path = "/api/v1/pool/status",
    operation_id = "get_pool_status", tag = "system",
    responses((status = 200, body = api::PoolStatus, description = "The figures are there when pool mode is on")))]
pub async fn status(State(api): State<Api>) -> Result<Json<api::PoolStatus>> {
    Ok(Json(super::wire::pool_status(api.control.pool_status().await?)))
}
