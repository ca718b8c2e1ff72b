//! Requests over HTTP: deadlines, bounded bodies, and refusals.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::fault::Fault;

/// Largest JSON answer about one thing, in bytes.
pub(super) const SMALL_BYTES_MAX: usize = 1024 * 1024;
/// Largest JSON answer with a list, in bytes.
pub(super) const LIST_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Largest body of a refusal, in bytes.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// Characters of a refusal that is not JSON, which go to the log.
const QUOTED_CHARS_MAX: usize = 200;

/// Body of a refusal: an integer code from the control plane and from files, a word from Connect.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: serde_json::Value,
    #[serde(default)]
    message: String,
}

/// Sends a request. An answer that is not a success becomes a fault.
pub(super) async fn send(request: RequestBuilder, after: Duration) -> Result<Response, Fault> {
    let response = send_any(request, after).await?;
    if response.status().is_success() { Ok(response) } else { Err(refusal(response, after).await) }
}

/// Sends a request, and returns the answer of any status once its head has come.
pub(super) async fn send_any(request: RequestBuilder, after: Duration) -> Result<Response, Fault> {
    match tokio::time::timeout(after, request.send()).await {
        Ok(sent) => sent.map_err(|error| failure(&error)),
        Err(_) => Err(Fault::Timeout(after)),
    }
}

/// Sends a request and reads its whole JSON answer.
pub(super) async fn json<T: DeserializeOwned>(
    request: RequestBuilder,
    bytes_max: usize,
    after: Duration,
) -> Result<T, Fault> {
    let answered = async { parse(&body(send(request, after).await?, bytes_max).await?) };
    tokio::time::timeout(after, answered).await.unwrap_or(Err(Fault::Timeout(after)))
}

/// Parses a JSON answer.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| Fault::Protocol(format!("unexpected JSON: {error}")))
}

/// Reads a whole body of at most `bytes_max` bytes.
pub(super) async fn body(mut response: Response, bytes_max: usize) -> Result<Bytes, Fault> {
    let mut body = BytesMut::new();
    while let Some(piece) = response.chunk().await.map_err(|error| failure(&error))? {
        if body.len() + piece.len() > bytes_max {
            return Err(Fault::Protocol(format!("the answer is larger than {bytes_max} bytes")));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

/// Returns the fault that an answer tells.
pub(super) async fn refusal(response: Response, after: Duration) -> Fault {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body = match tokio::time::timeout(after, body(response, REFUSAL_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(fault)) => return fault,
        Err(_) => return Fault::Timeout(after),
    };
    match serde_json::from_slice::<Refusal>(&body) {
        Ok(Refusal { code: serde_json::Value::String(code), message }) => Fault::Rpc { code, message },
        Ok(Refusal { message, .. }) if !message.is_empty() => Fault::Status { status, message, retry_after },
        // A balancer in front of the service answers so.
        _ if matches!(status, 401 | 403 | 429 | 502 | 503) => {
            Fault::Status { status, message: format!("status {status}"), retry_after }
        }
        _ => {
            let text: String = String::from_utf8_lossy(&body).chars().take(QUOTED_CHARS_MAX).collect();
            Fault::Protocol(format!("status {status} with the body {text:?}"))
        }
    }
}

/// Converts a failure to send, or to read what was answered.
pub(super) fn failure(error: &reqwest::Error) -> Fault {
    if error.is_connect() { Fault::Connect(client::innermost(error)) } else { Fault::Cut(client::innermost(error)) }
}
