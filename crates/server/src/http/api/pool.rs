//! `/pool/status`.

use axum::Json;
use axum::extract::State;

use crate::http::error::Result;
use crate::http::state::Api;

/// Get the usage of the shared boxes
#[utoipa::path(get, path = "/api/v1/pool/status",
    operation_id = "get_pool_status", tag = "system",
    responses((status = 200, body = api::PoolStatus, description = "State of pool mode, and usage of its boxes")))]
pub async fn status(State(api): State<Api>) -> Result<Json<api::PoolStatus>> {
    Ok(Json(super::wire::pool_status(api.control.pool_status().await?)))
}
