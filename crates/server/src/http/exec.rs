//! `/sandboxes/{id}/exec`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::error::Result;
use super::ndjson::{self, Form};
use super::request::{Json as Body, Name};
use super::{Api, wire};
use crate::control::Running;

/// Run a command
///
/// Buffered by default. With `stream: true` the answer is NDJSON, one chunk a
/// line as it is written; hanging up kills the command.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/exec", tag = "exec", params(("id" = String, Path)),
    request_body = api::ExecRequest,
    responses(
        (status = 200, description = "How it ended, also when it failed; or its output as it is written",
            content((api::ExecResult = "application/json"), (api::ExecChunk = "application/x-ndjson"))),
        (status = 400, body = api::ErrorBody, description = "The command makes no sense"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 429, body = api::ErrorBody, description = "Above the longest deadline, or too many processes")))]
pub async fn exec(State(api): State<Api>, Name(id): Name, Body(body): Body<api::ExecRequest>) -> Result<Response> {
    let (is_stream, encoding, exit_event) = (body.stream, body.encoding, body.exit_event);
    let request = wire::exec_request(body)?;
    if !is_stream {
        let outcome = api.control.exec(&id, request).await?;
        return Ok(Json(wire::exec_result(outcome, encoding)).into_response());
    }
    let Running { output, timeout } = api.control.exec_stream(&id, request).await?;
    Ok(ndjson::response(output, Form { base64: encoding == api::TextEncoding::Base64, exit_event, timeout }))
}
