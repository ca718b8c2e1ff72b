//! `/sandboxes/{id}/exec/ws`: the handshake of a WebSocket that runs a command.

mod inflow;
mod session;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tracing::Instrument;

use super::error::{ApiError, Refusal, Result, malformed};
use super::meter::{Meter, WAIT_MAX};
use super::request::Name;
use super::state::Api;
use super::subprotocol;

/// The only supported version of the protocol.
const VERSION: &[u8] = b"13";
/// Length of a handshake's key, in bytes.
const KEY_BYTES: usize = 16;

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
pub async fn open(State(api): State<Api>, Name(id): Name, meter: Meter, mut request: Request) -> Result<Response> {
    if !api.settings.cors.admits_socket(request.headers()) {
        return Err(Refusal::SocketOrigin.into());
    }
    let accept = accept(request.headers())?;
    let selected = subprotocol::selected(request.headers());
    api.control.may_exec(&id).await?;
    let held = meter.account().reserve_within(session::SOCKET_BYTES, WAIT_MAX).await?;
    let upgrade = hyper::upgrade::on(&mut request);
    let tasks = api.control.tasks().clone();
    let session = async move {
        match upgrade.await {
            Ok(stream) => session::run(api, id, TokioIo::new(stream), held).await,
            // The client hung up before the answer.
            Err(error) => tracing::debug!(%error, "a WebSocket was not opened"),
        }
    };
    tasks.spawn(session.in_current_span());
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(selected) = selected {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, selected);
    }
    Ok(response)
}

/// Returns the `Sec-WebSocket-Accept` for a handshake.
fn accept(headers: &HeaderMap) -> Result<HeaderValue> {
    if !names(headers, header::CONNECTION, "upgrade") || !names(headers, header::UPGRADE, "websocket") {
        return Err(malformed(
            "this route speaks WebSocket; open one with `Connection: Upgrade` and `Upgrade: websocket`, or POST to \
             `/api/v1/sandboxes/{id}/exec` with `stream: true`",
        ));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != VERSION) {
        return Err(malformed("send `Sec-WebSocket-Version: 13`; there is no other"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| {
        let decoded = BASE64.decode(key.as_bytes());
        decoded.is_ok_and(|key| key.len() == KEY_BYTES)
    });
    let key = key.ok_or_else(|| malformed("`Sec-WebSocket-Key` must be the base64 of 16 bytes"))?;
    HeaderValue::try_from(derive_accept_key(key.as_bytes())).map_err(|_| ApiError::from(Refusal::Internal))
}

/// Returns whether a header that lists names contains this one.
fn names(headers: &HeaderMap, header: HeaderName, name: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|listed| listed.trim().eq_ignore_ascii_case(name))
}
