//! `/sandboxes/{id}/processes`: commands in the background.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use providers::{Attach, AttachFrom, ProcessAction, ProcessEvents, STREAM_BYTES_MAX};
use serde::Deserialize;
use utoipa::IntoParams;

use super::output::Form;
use crate::control::ProcessRef;
use crate::http::api::output::frames;
use crate::http::api::output::ndjson;
use crate::http::api::wire;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name, Names, Params};
use crate::http::request_memory::{LIST_BYTES, Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow};

/// List the background processes
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/processes",
    operation_id = "list_processes", tag = "exec", params(("id" = String, Path)),
    responses(
        (status = 200, body = Vec<api::Process>, description = "Running processes and the most recently ended ones, by \
                                                                number"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support background processes"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn list(State(api): State<Api>, Name(id): Name, meter: Meter) -> Result<Json<Vec<api::Process>>> {
    meter.hold(LIST_BYTES).await?;
    Ok(Json(api.control.processes(&id).await?.into_iter().map(wire::process).collect()))
}

/// Get a background process
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/processes/{process}",
    operation_id = "get_process", tag = "exec",
    params(("id" = String, Path), ("process" = String, Path, description = "Process number or name")),
    responses(
        (status = 200, body = api::Process, description = "State of the process, and how it ended"),
        (status = 400, body = api::ErrorBody, description = "Invalid process number or name, or the provider does not support background processes"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn get(State(api): State<Api>, Names((id, process)): Names<(String, String)>) -> Result<Json<api::Process>> {
    let process = wire::process_ref(&process)?;
    Ok(Json(wire::process(api.control.process(&id, &process).await?)))
}

/// Kill and remove a background process
///
/// Kills the process and all its descendants, and removes its output.
#[utoipa::path(delete, path = "/api/v1/sandboxes/{id}/processes/{process}",
    operation_id = "delete_process", tag = "exec",
    params(("id" = String, Path), ("process" = String, Path, description = "Process number or name")),
    responses(
        (status = 200, body = api::Status, description = "Killed and removed"),
        (status = 400, body = api::ErrorBody, description = "Invalid process number or name, or the provider does not support background processes"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn remove(
    State(api): State<Api>,
    Names((id, process)): Names<(String, String)>,
) -> Result<Json<api::Status>> {
    api.control.remove_process(&id, &wire::process_ref(&process)?).await?;
    Ok(wire::status("removed"))
}

/// Query of a process's output.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutputParams {
    /// Sequence number to continue from: the `seq` of the last chunk received; 0, the default, for all kept
    /// output
    #[serde(default)]
    #[param(minimum = 0)]
    from: u64,
    /// True to follow the output until the process ends
    #[serde(default)]
    follow: bool,
    /// Encoding of the output
    #[serde(default)]
    #[param(inline)]
    encoding: api::TextEncoding,
}

/// Read the output of a background process
///
/// NDJSON, one chunk per line, each with the sequence number to continue from; with `Accept: application/octet-stream`,
/// frames of raw bytes. The last chunk of a process that has ended is its exit code. Where output is no longer kept, a
/// `gap` chunk gives the number of missing bytes.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/processes/{process}/output",
    operation_id = "read_process_output", tag = "exec",
    params(("id" = String, Path), ("process" = String, Path, description = "Process number or name"), OutputParams),
    responses(
        (status = 200, description = "The output",
            content((api::ExecChunk = "application/x-ndjson"), (Vec<u8> = "application/octet-stream"))),
        (status = 400, body = api::ErrorBody, description = "A position beyond the output"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn output(
    State(api): State<Api>,
    Names((id, process)): Names<(String, String)>,
    Params(params): Params<OutputParams>,
    meter: Meter,
    headers: HeaderMap,
) -> Result<Response> {
    let process = wire::process_ref(&process)?;
    let OutputParams { from, follow, encoding } = params;
    let is_raw = frames::are_wanted(&headers);
    let form = Form { is_raw, base64: encoding == api::TextEncoding::Base64, exit_event: true, timeout: None };
    read(&api, &id, &process, (from, follow), form, &meter).await
}

/// Streams the output of a process that has just been started, from its beginning.
pub async fn stream(api: &Api, id: &str, process: u64, form: Form, meter: &Meter) -> Result<Response> {
    let mut response = read(api, id, &ProcessRef::Number(process), (0, true), form, meter).await?;
    response.headers_mut().insert(api::PROCESS_HEADER, HeaderValue::from(process));
    Ok(response)
}

async fn read(
    api: &Api,
    id: &str,
    process: &ProcessRef,
    (from, follow): (u64, bool),
    form: Form,
    meter: &Meter,
) -> Result<Response> {
    let held = meter.account().reserve_within(STREAM_BYTES_MAX + OUTFLOW_BYTES, WAIT_MAX).await?;
    let attach = Attach { from: AttachFrom::Position(from), follow, input: None };
    let attached = api.control.attach_process(id, process, attach).await?;
    Ok(answer(attached.output, Some(from), form, Outflow::new(held, STREAM_BYTES_MAX)))
}

/// Returns the response that carries output in the form that the caller asked for; with `position`, that of the
/// first byte, for a process. Dropping it kills a command, and leaves a process as it is.
pub fn answer(output: ProcessEvents, position: Option<u64>, form: Form, outflow: Outflow) -> Response {
    match form.is_raw {
        true => frames::response(output, position, form.timeout, outflow),
        false => ndjson::response(output, position, form, outflow),
    }
}

/// Write to the stdin of a background process
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/processes/{process}/stdin",
    operation_id = "write_process_stdin", tag = "exec",
    params(("id" = String, Path), ("process" = String, Path, description = "Process number or name")),
    request_body = api::ProcessInput,
    responses(
        (status = 200, body = api::Status, description = "The input was written"),
        (status = 400, body = api::ErrorBody, description = "Invalid base64"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = api::ErrorBody, description = "Its stdin is closed, or the process does not read it")))]
pub async fn input(
    State(api): State<Api>,
    Names((id, process)): Names<(String, String)>,
    Body(body): Body<api::ProcessInput>,
) -> Result<Json<api::Status>> {
    let process = wire::process_ref(&process)?;
    let api::ProcessInput { data, encoding, eof } = body;
    let data = wire::bytes("data", data, encoding)?;
    api.control.process_input(&id, &process, data, eof).await?;
    Ok(wire::status("written"))
}

/// Send a signal to a background process
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/processes/{process}/signal",
    operation_id = "signal_process", tag = "exec",
    params(("id" = String, Path), ("process" = String, Path, description = "Process number or name")),
    request_body = api::ProcessSignal,
    responses(
        (status = 200, body = api::Status, description = "Sent, unless the process has ended"),
        (status = 400, body = api::ErrorBody, description = "Unknown signal"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn signal(
    State(api): State<Api>,
    Names((id, process)): Names<(String, String)>,
    Body(body): Body<api::ProcessSignal>,
) -> Result<Json<api::Status>> {
    let process = wire::process_ref(&process)?;
    let signal = ProcessAction::Signal(wire::signal(&body.signal)?);
    api.control.control_process(&id, &process, signal).await?;
    Ok(wire::status("sent"))
}

/// Resize the terminal of a background process
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/processes/{process}/resize",
    operation_id = "resize_process", tag = "exec",
    params(("id" = String, Path), ("process" = String, Path, description = "Process number or name")),
    request_body = api::ProcessResize,
    responses(
        (status = 200, body = api::Status, description = "Resized"),
        (status = 400, body = api::ErrorBody, description = "Invalid size, or the process has no terminal"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn resize(
    State(api): State<Api>,
    Names((id, process)): Names<(String, String)>,
    Body(body): Body<api::ProcessResize>,
) -> Result<Json<api::Status>> {
    let process = wire::process_ref(&process)?;
    let size = ProcessAction::Resize(wire::terminal_size(body.cols, body.rows)?);
    api.control.control_process(&id, &process, size).await?;
    Ok(wire::status("resized"))
}
