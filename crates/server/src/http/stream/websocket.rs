//! The handshake of a WebSocket. Its session is in `session`.

mod inflow;
mod session;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tracing::Instrument;

use super::subprotocol;
use crate::http::error::{ApiError, Refusal, Result, malformed};
use crate::http::key_life::KeyLife;
use crate::http::state::Api;

#[cfg(test)]
pub use session::PING_EVERY;
pub use session::{BUFFER_BYTES, End, Inflow, Life, MESSAGE, Session, heard, json, kind, pings};

/// The only supported version of the protocol.
const VERSION: &[u8] = b"13";
/// Length of a handshake's key, in bytes.
const KEY_BYTES: usize = 16;

/// A handshake that is in order.
#[derive(Debug)]
pub struct Handshake {
    accept: HeaderValue,
    subprotocol: Option<HeaderValue>,
}

impl Handshake {
    /// Checks the handshake of a client. `instead` names what serves one that speaks no WebSocket.
    pub fn check(api: &Api, headers: &HeaderMap, instead: &str) -> Result<Self> {
        if !api.settings.cors.admits_socket(headers) {
            return Err(Refusal::SocketOrigin.into());
        }
        Ok(Self { accept: accept(headers, instead)?, subprotocol: subprotocol::selected(headers) })
    }

    /// Answers the handshake, and runs the session as soon as the client has the answer.
    pub fn open<F>(
        self,
        api: Api,
        mut request: Request,
        session: impl FnOnce(Api, Life, TokioIo<Upgraded>) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let upgrade = hyper::upgrade::on(&mut request);
        let life = Life { key: KeyLife::among(request.extensions()), stop: api.stop.clone() };
        let tasks = api.control.tasks().clone();
        let session = async move {
            match upgrade.await {
                Ok(stream) => session(api, life, TokioIo::new(stream)).await,
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
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(selected) = self.subprotocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, selected);
        }
        response
    }
}

/// Returns the `Sec-WebSocket-Accept` for a handshake.
fn accept(headers: &HeaderMap, instead: &str) -> Result<HeaderValue> {
    if !names(headers, header::CONNECTION, "upgrade") || !names(headers, header::UPGRADE, "websocket") {
        return Err(malformed(format!(
            "this route speaks WebSocket over HTTP/1.1; open one with `Connection: Upgrade` and `Upgrade: websocket`, \
             or {instead}"
        )));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != VERSION) {
        return Err(malformed("send `Sec-WebSocket-Version: 13`; no other version is supported"));
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
