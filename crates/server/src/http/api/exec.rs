//! `/sandboxes/{id}/exec`.

mod answer;
pub mod socket;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use providers::STREAM_BYTES_MAX;

use super::output::frames;
use super::output::{Form, of_command};
use crate::control::Running;
use crate::http::api::processes;
use crate::http::api::wire;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name};
use crate::http::request_memory::{Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow};

/// Memory held for a buffered command before it has written anything: its answer, and a first
/// piece of each stream.
const EXEC_BYTES: usize = OUTFLOW_BYTES + 2 * 4 * 1024;

/// Run a command
///
/// Buffered by default. With `stream: true` the response is NDJSON, one line per chunk as it is written, or frames of
/// raw bytes with `Accept: application/octet-stream`; disconnecting kills the command unless it is `resumable`. With
/// `background: true` the response comes immediately, and the command keeps running.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/exec",
    operation_id = "exec_command", tag = "exec", params(("id" = String, Path)),
    request_body = api::ExecRequest,
    responses(
        (status = 200, description = "Exit code and output, even if the command failed; or a stream of its output",
            content((api::ExecResult = "application/json"), (api::ExecChunk = "application/x-ndjson"), (Vec<u8> = "application/octet-stream"))),
        (status = 202, body = api::ProcessStarted, description = "Started in the background"),
        (status = 400, body = api::ErrorBody, description = "Invalid command"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running, or the process name is taken"),
        (status = 429, body = api::ErrorBody, description = "The deadline is above the maximum, or too many processes"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn exec(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    headers: HeaderMap,
    Body(mut body): Body<api::ExecRequest>,
) -> Result<Response> {
    let is_stream = body.stream;
    let encoding = body.encoding;
    let is_raw = frames::are_wanted(&headers);
    let form =
        Form { is_raw, base64: encoding == api::TextEncoding::Base64, exit_event: body.exit_event, timeout: None };
    if let Some(start) = wire::background(&mut body)? {
        let process = api.control.start_process(&id, start(wire::exec_request(body)?)).await?;
        return match is_stream {
            true => processes::stream(&api, &id, process.process, form, &meter).await,
            false => Ok((StatusCode::ACCEPTED, axum::Json(wire::process_started(process))).into_response()),
        };
    }
    let request = wire::exec_request(body)?;
    if !is_stream {
        // Refused before the start if at all: a command that has run must not be run again.
        let held = meter.account().reserve_within(EXEC_BYTES, WAIT_MAX).await?;
        let outcome = api.control.exec(&id, request, held, OUTFLOW_BYTES).await?;
        return Ok(answer::response(outcome, encoding));
    }
    let mut held = meter.account().reserve_within(STREAM_BYTES_MAX + OUTFLOW_BYTES, WAIT_MAX).await?;
    let has_stdin = request.stdin.is_some();
    let Running { output, timeout } = api.control.exec_stream(&id, request).await?;
    let mut kept = STREAM_BYTES_MAX;
    if has_stdin {
        // The command may read its stdin at any time until its end.
        let stdin = meter.take();
        kept += stdin.bytes();
        held.merge(stdin);
    }
    let form = Form { timeout: Some(timeout), ..form };
    Ok(processes::answer(of_command(output), None, form, Outflow::new(held, kept)))
}
