//! `/sandboxes/{id}/exec/ws`: a WebSocket that runs a command.

mod session;

use axum::extract::{Request, State};
use axum::response::Response;

use super::error::Result;
use super::meter::{Meter, WAIT_MAX};
use super::request::Name;
use super::state::Api;
use super::websocket::Handshake;

/// Route for a client that speaks no WebSocket.
const INSTEAD: &str = "POST to `/api/v1/sandboxes/{id}/exec` with `stream: true`";

/// Run a command and stay in touch with it
///
/// A WebSocket. The client's first message is a `SocketStart`; then come `SocketStdin`, `SocketEof`, `SocketResize`
/// and `SocketSignal`, and binary frames with raw bytes for stdin. The server sends `SocketOutput`. Hanging up kills
/// the command.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/exec/ws", tag = "exec",
    params(("id" = String, Path),
        ("Sec-WebSocket-Protocol" = Option<String>, Header,
            description = "`tidebox.v1`, and from a page in a browser `tidebox.key.<base64url of the key>`")),
    responses(
        (status = 101, description = "From here on it is a WebSocket"),
        (status = 400, body = api::ErrorBody, description = "No handshake of a WebSocket"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn open(State(api): State<Api>, Name(id): Name, meter: Meter, request: Request) -> Result<Response> {
    let handshake = Handshake::check(&api, request.headers(), INSTEAD)?;
    api.control.may_exec(&id).await?;
    let held = meter.account().reserve_within(session::SOCKET_BYTES, WAIT_MAX).await?;
    Ok(handshake.open(api, request, |api, io| session::run(api, id, io, held)))
}
