//! `/sandboxes/{id}/egress`: the policy on connections out of a sandbox, and their account.

use axum::Json;
use axum::extract::State;

use super::wire;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name};
use crate::http::request_memory::Meter;
use crate::http::state::Api;

/// Memory of an answer: two policies and a hundred decisions.
const ANSWER_BYTES: usize = 256 * 1024;

/// Show the connections out of a sandbox
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/egress",
    operation_id = "get_egress", tag = "egress", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::Egress, description = "Policies, counters, and the newest decisions with their reasons"),
        (status = 400, body = api::ErrorBody, description = "Another server makes the sandbox's connections"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox")))]
pub async fn show(State(api): State<Api>, Name(id): Name, meter: Meter) -> Result<Json<api::Egress>> {
    meter.hold(ANSWER_BYTES).await?;
    Ok(Json(wire::egress(api.control.egress_of(&id).await?)))
}

/// Replace the egress policy
///
/// Applies immediately: open connections that the new policy does not allow are closed.
#[utoipa::path(put, path = "/api/v1/sandboxes/{id}/egress",
    operation_id = "put_egress", tag = "egress", params(("id" = String, Path)),
    request_body = api::EgressPolicy,
    responses(
        (status = 200, body = api::Egress, description = "The policy is in force"),
        (status = 400, body = api::ErrorBody, description = "Invalid policy, or another server makes the sandbox's \
                                                             connections"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or egress list"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn replace(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    Body(body): Body<api::EgressPolicy>,
) -> Result<Json<api::Egress>> {
    meter.hold(ANSWER_BYTES).await?;
    let policy = wire::egress_policy(&body)?;
    Ok(Json(wire::egress(api.control.set_egress(&id, policy).await?)))
}
