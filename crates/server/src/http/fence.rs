//! `X-Lease-Generation`: writes of a control plane to its worker.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use domain::SandboxId;

use super::Api;
use super::error::{ApiError, malformed};

/// What sandboxes' paths begin with.
const PREFIX: &str = "/api/v1/sandboxes/";

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

/// Refuses a write that carries an older generation than one before.
pub async fn pass(State(api): State<Api>, request: Request, next: Next) -> Response {
    let seen = match carried(&request) {
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
fn carried(request: &Request) -> Result<Option<(SandboxId, u64)>, ApiError> {
    // A WebSocket is opened by reading, and what it does is no reading.
    let is_socket = request.uri().path().ends_with("/exec/ws");
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && !is_socket {
        return Ok(None);
    }
    let Some(generation) = generation(request.headers())? else { return Ok(None) };
    let id = request.uri().path().strip_prefix(PREFIX).and_then(|rest| rest.split('/').next());
    Ok(id.and_then(|id| SandboxId::parse(id).ok()).map(|id| (id, generation)))
}
