//! `X-Lease-Generation`: fencing of writes by a control plane to its worker.

use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::HeaderMap;

use domain::SandboxId;

use crate::http::error::{ApiError, malformed};
use crate::http::middleware::users::named;
use crate::http::policy::Policy;
use crate::http::state::Api;

/// Returns the lease generation that a request carries.
///
/// # Errors
/// If it is no whole number from 0 to [`GENERATION_MAX`].
pub fn generation(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("x-lease-generation") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|number| *number <= GENERATION_MAX);
    number.map(Some).ok_or_else(|| malformed("`X-Lease-Generation` is not a whole number"))
}

/// Highest generation that a store can hold.
const GENERATION_MAX: u64 = i64::MAX as u64;

/// Refuses a write with an older lease generation than one before. Runs after the check that
/// keeps users apart, so that a stranger neither records a generation on a sandbox nor learns
/// from a refusal that it exists.
pub async fn check(api: &Api, policy: Policy, request: Request) -> Result<Request, ApiError> {
    if !policy.is_fenced {
        return Ok(request);
    }
    let Some(generation) = generation(request.headers())? else { return Ok(request) };
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    if let Some(id) = params.ok().and_then(|params| sandbox(&params)) {
        api.control.see_generation(&id, generation).await?;
    }
    Ok(Request::from_parts(parts, body))
}

fn sandbox(params: &RawPathParams) -> Option<SandboxId> {
    SandboxId::parse(named(params)?).ok()
}
