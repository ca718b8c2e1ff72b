//! `/sandboxes/{id}/ports`: the ports that listen in a sandbox, and connections to them.

mod session;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;

use self::session::Connection;
use super::error::Result;
use super::files::LIST_BYTES;
use super::meter::{Meter, WAIT_MAX};
use super::port_stream::{self, PortStream};
use super::request::{Name, Names};
use super::state::Api;
use super::websocket::Handshake;
use super::wire;

/// Command for a client that speaks no WebSocket.
const INSTEAD: &str = "use `tidebox forward`";

/// List the ports that listen
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/ports", tag = "ports", params(("id" = String, Path)),
    responses(
        (status = 200, body = Vec<api::ListeningPort>,
            description = "TCP ports that processes of the sandbox listen on, by number and address"),
        (status = 400, body = api::ErrorBody, description = "The provider cannot list them"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn list(State(api): State<Api>, Name(id): Name, meter: Meter) -> Result<Json<Vec<api::ListeningPort>>> {
    meter.hold(LIST_BYTES).await?;
    Ok(Json(api.control.ports(&id).await?.into_iter().map(wire::listening_port).collect()))
}

/// Connect to a port
///
/// A WebSocket that is a TCP connection. Binary frames are its bytes. A `SocketEof` ends what the client sends; the
/// server's messages are `PortMessage`s. After the end of both directions the server closes. Hanging up resets the
/// connection.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/ports/{port}/connect", tag = "ports",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1),
        ("Sec-WebSocket-Protocol" = Option<String>, Header,
            description = "`tidebox.v1`, and from a page in a browser `tidebox.key.<base64url of the key>`")),
    responses(
        (status = 101, description = "The connection is open; from here on it is a WebSocket"),
        (status = 400, body = api::ErrorBody,
            description = "No port, no handshake of a WebSocket, or the provider cannot connect"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or nothing listens on the port"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn connect(
    State(api): State<Api>,
    Names((id, port)): Names<(String, String)>,
    meter: Meter,
    request: Request,
) -> Result<Response> {
    let port = wire::port(&port)?;
    let handshake = Handshake::check(&api, request.headers(), INSTEAD)?;
    let held = meter.account().reserve_within(session::SOCKET_BYTES, WAIT_MAX).await?;
    let (to_process, input) = port_stream::input();
    let from_process = api.control.connect(&id, port, input).await?;
    let from_process = PortStream::new(from_process, meter.account());
    let connection = Connection { to_process, from_process };
    Ok(handshake.open(api, request, move |api, io| session::run(api, id, io, connection, held)))
}
