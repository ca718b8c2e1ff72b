//! `X-Lease-Generation`: writes of a control plane to its worker.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use domain::SandboxId;

use super::Api;
use super::error::{ApiError, malformed};
use super::pool::named;

/// The generation that a request carries.
///
/// # Errors
/// If it is no number.
pub fn generation(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("x-lease-generation") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|number| *number <= GENERATION_MAX);
    number.map(Some).ok_or_else(|| malformed("`X-Lease-Generation` is not a whole number"))
}

/// What a store can hold.
const GENERATION_MAX: u64 = i64::MAX as u64;

/// Refuses a write that carries an older generation than one before. Comes after what
/// keeps users apart, so that a stranger neither leaves a generation on a sandbox nor
/// learns from a refusal that it is there.
pub async fn pass(
    State(api): State<Api>,
    matched: Option<MatchedPath>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let route = matched.as_ref().map_or("", MatchedPath::as_str);
    let id = params.ok().and_then(|params| named(route, &params).into_iter().next());
    let seen = match carried(&request, id) {
        Ok(Some((id, generation))) => api.control.see_generation(&id, generation).await.map_err(ApiError::from),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    match seen {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// The sandbox that a write is about, and the generation that it carries. A spawn
/// names no sandbox; its handler sees to it.
fn carried(request: &Request, id: Option<String>) -> Result<Option<(SandboxId, u64)>, ApiError> {
    // A WebSocket is opened by reading, and what it does is no reading.
    let is_socket = request.uri().path().ends_with("/exec/ws");
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && !is_socket {
        return Ok(None);
    }
    let Some(generation) = generation(request.headers())? else { return Ok(None) };
    Ok(id.and_then(|id| SandboxId::parse(&id).ok()).map(|id| (id, generation)))
}
