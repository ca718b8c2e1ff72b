//! `/sandboxes/{id}/exec/ws`, a WebSocket that runs a command, and
//! `/sandboxes/{id}/processes/{process}/attach`, one that shows a process.

mod session;

use axum::extract::{Request, State};
use axum::response::Response;
use providers::{Attach, AttachFrom};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::api::wire;
use crate::http::error::{Result, malformed};
use crate::http::request::{Name, Names, Params};
use crate::http::request_memory::{Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::websocket::Handshake;

/// Route for a client that speaks no WebSocket.
const INSTEAD: &str = "POST to `/api/v1/sandboxes/{id}/exec` with `stream: true`";

/// Run a command over a WebSocket
///
/// A WebSocket. The client first sends a `SocketStart`, then `SocketStdin`, `SocketEof`, `SocketResize` and
/// `SocketSignal`, and binary frames with raw bytes for stdin. The server sends `SocketOutput`. Disconnecting kills the
/// command.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/exec/ws",
    operation_id = "open_exec_socket", tag = "exec",
    params(("id" = String, Path),
        ("Sec-WebSocket-Protocol" = Option<String>, Header,
            description = "`tidebox.v1`; in a browser, also `tidebox.key.<base64url of the key>`")),
    responses(
        (status = 101, description = "Switched to a WebSocket"),
        (status = 400, body = api::ErrorBody, description = "Invalid WebSocket handshake"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn open(State(api): State<Api>, Name(id): Name, meter: Meter, request: Request) -> Result<Response> {
    let handshake = Handshake::check(&api, request.headers(), INSTEAD)?;
    api.control.may_exec(&id).await?;
    let held = meter.account().reserve_within(session::SOCKET_BYTES, WAIT_MAX).await?;
    Ok(handshake.open(api, request, |api, life, io| session::run(api, id, io, life, held)))
}

/// Route for a client that speaks no WebSocket and wants to see a process.
const OUTPUT_INSTEAD: &str = "GET `/api/v1/sandboxes/{id}/processes/{process}/output` with `follow=true`";

/// Query of a look at a process.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttachParams {
    /// Sequence number to continue from. If absent, the output starts with the terminal's screen or, without a
    /// terminal, with the oldest output that is kept
    #[param(minimum = 0)]
    from: Option<u64>,
    /// True to receive output in binary frames, unchanged: one byte for the stream (1 stdout, 2 stderr, 3 the
    /// screen), then the bytes
    #[serde(default)]
    binary: bool,
    /// Columns to resize the terminal to; requires `rows`
    #[param(minimum = 1, maximum = 65535)]
    cols: Option<u16>,
    /// Rows to resize the terminal to; requires `cols`
    #[param(minimum = 1, maximum = 65535)]
    rows: Option<u16>,
}

/// Attach to a background process
///
/// A WebSocket that receives the output of the process as `SocketOutput`s. The client may send `SocketStdin`,
/// `SocketEof`, `SocketResize` and `SocketSignal`, and binary frames with raw bytes for stdin. Disconnecting does not
/// affect the process. Any number of clients may be attached.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/processes/{process}/attach",
    operation_id = "attach_process", tag = "exec",
    params(("id" = String, Path), ("process" = String, Path), AttachParams,
        ("Sec-WebSocket-Protocol" = Option<String>, Header,
            description = "`tidebox.v1`; in a browser, also `tidebox.key.<base64url of the key>`")),
    responses(
        (status = 101, description = "Switched to a WebSocket"),
        (status = 400, body = api::ErrorBody, description = "Invalid WebSocket handshake or position"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn attach(
    State(api): State<Api>,
    Names((id, process)): Names<(String, String)>,
    Params(params): Params<AttachParams>,
    meter: Meter,
    request: Request,
) -> Result<Response> {
    let process = wire::process_ref(&process)?;
    let size = match (params.cols, params.rows) {
        (Some(cols), Some(rows)) => Some(wire::terminal_size(cols, rows)?),
        (None, None) => None,
        _ => return Err(malformed("`cols` and `rows` must be set together")),
    };
    let handshake = Handshake::check(&api, request.headers(), OUTPUT_INSTEAD)?;
    let held = meter.account().reserve_within(session::SOCKET_BYTES, WAIT_MAX).await?;
    let (stdin, input) = session::input();
    let from = params.from.map_or(AttachFrom::Screen, AttachFrom::Position);
    let attach = Attach { from, follow: true, input: Some(input) };
    // Before the screen is drawn, so that it has the size of this client.
    if let Some(size) = size {
        api.control.control_process(&id, &process, providers::ProcessAction::Resize(size)).await?;
    }
    let process = api.control.attach_process(&id, &process, attach).await?;
    let view = session::View { process, stdin, binary: params.binary };
    Ok(handshake.open(api, request, |api, life, io| session::attach(api, id, io, life, held, view)))
}
