//! `/sandboxes/{id}/ports`: the ports that listen in a sandbox, and connections to them.

mod listener;
mod session;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use tokio_util::sync::CancellationToken;

use self::session::Connection;
use super::wire;
use crate::control::Taken;
use crate::http::error::Result;
use crate::http::request::{Name, Names};
use crate::http::request_memory::{LIST_BYTES, Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::port_stream::{self, PortStream};
use crate::http::stream::websocket::Handshake;

/// Command for a client that speaks no WebSocket.
const INSTEAD: &str = "use `tidebox forward`";
/// Command for one that wants to listen.
const LISTEN_INSTEAD: &str = "use `tidebox forward --reverse`";

/// List listening ports
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/ports",
    operation_id = "list_ports", tag = "ports", params(("id" = String, Path)),
    responses(
        (status = 200, body = Vec<api::ListeningPort>,
            description = "TCP ports that processes of the sandbox listen on, by number and address"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support listing ports"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn list(State(api): State<Api>, Name(id): Name, meter: Meter) -> Result<Json<Vec<api::ListeningPort>>> {
    meter.hold(LIST_BYTES).await?;
    Ok(Json(api.control.ports(&id).await?.into_iter().map(wire::listening_port).collect()))
}

/// Connect to a port
///
/// A WebSocket that carries a TCP connection in binary frames. A `SocketEof` ends the client's direction; the server's
/// messages are `PortMessage`s. The server closes the WebSocket when both directions have ended. Disconnecting resets
/// the connection.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/ports/{port}/connect",
    operation_id = "connect_port", tag = "ports",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1),
        ("Sec-WebSocket-Protocol" = Option<String>, Header,
            description = "`tidebox.v1`; in a browser, also `tidebox.key.<base64url of the key>`")),
    responses(
        (status = 101, description = "Connected; switched to a WebSocket"),
        (status = 400, body = api::ErrorBody,
            description = "Invalid port or WebSocket handshake, or the provider does not support connecting"),
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
    let connection = Connection { to_process, from_process, ended: CancellationToken::new() };
    Ok(handshake.open(api, request, move |api, life, io| session::run(api, id, io, life, connection, held)))
}

/// Listen on a port
///
/// A WebSocket that announces each connection from a program in the sandbox to this port of its loopback, as a
/// `ListenMessage`. Accept the connection on a second WebSocket within 15 seconds, or it is reset; a `ListenRefuse`
/// resets it immediately. Disconnecting closes the port and resets all connections.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/ports/{port}/listen",
    operation_id = "listen_port", tag = "ports",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1),
        ("Sec-WebSocket-Protocol" = Option<String>, Header,
            description = "`tidebox.v1`; in a browser, also `tidebox.key.<base64url of the key>`")),
    responses(
        (status = 101, description = "Listening; switched to a WebSocket"),
        (status = 400, body = api::ErrorBody,
            description = "Invalid or forbidden port, invalid WebSocket handshake, not supported by the provider, or \
                           switched off"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The port is in use, or the sandbox is not running"),
        (status = 429, body = api::ErrorBody, description = "Too many ports of the sandbox have a listener"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn listen(
    State(api): State<Api>,
    Names((id, port)): Names<(String, String)>,
    meter: Meter,
    request: Request,
) -> Result<Response> {
    let port = wire::port(&port)?;
    let handshake = Handshake::check(&api, request.headers(), LISTEN_INSTEAD)?;
    let held = meter.account().reserve_within(listener::SOCKET_BYTES, WAIT_MAX).await?;
    let listener = api.control.listen(&id, port).await?;
    Ok(handshake.open(api, request, move |api, life, io| listener::run(api, id, io, life, listener, held)))
}

/// Accept a connection to a port with a listener
///
/// A WebSocket that carries the TCP connection, with the messages of `/connect`.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/ports/{port}/listen/{connection}",
    operation_id = "accept_connection", tag = "ports",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1),
        ("connection" = u64, Path, description = "Number of the connection, as announced"),
        ("Sec-WebSocket-Protocol" = Option<String>, Header,
            description = "`tidebox.v1`; in a browser, also `tidebox.key.<base64url of the key>`")),
    responses(
        (status = 101, description = "Connected; switched to a WebSocket"),
        (status = 400, body = api::ErrorBody, description = "Invalid connection number or WebSocket handshake"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or no such connection is waiting"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn accept(
    State(api): State<Api>,
    Names((id, port, connection)): Names<(String, String, String)>,
    meter: Meter,
    request: Request,
) -> Result<Response> {
    let port = wire::port(&port)?;
    let number = wire::connection(&connection)?;
    let handshake = Handshake::check(&api, request.headers(), LISTEN_INSTEAD)?;
    let held = meter.account().reserve_within(session::SOCKET_BYTES, WAIT_MAX).await?;
    let (to_process, input) = port_stream::input();
    let Taken { output, ended } = api.control.take_connection(&id, port, number, input).await?;
    let connection = Connection { to_process, from_process: PortStream::new(output, meter.account()), ended };
    Ok(handshake.open(api, request, move |api, life, io| session::run(api, id, io, life, connection, held)))
}
