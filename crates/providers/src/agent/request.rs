//! Requests that are one JSON text and are answered with another.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use guest_protocol::{ANSWER_BYTES_MAX, Failure, FailureKind, VERSION, VERSION_HEADER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Body, Connection, fault};
use crate::{Error, Result};

/// The longest wait for what takes an agent a moment.
pub(super) const SHORT_WAIT: Duration = Duration::from_secs(30);
/// The longest wait for what may go through a whole file system.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(300);
/// The largest description of a failure, in bytes.
const FAILURE_BYTES_MAX: usize = 64 * 1024;
/// The longest text of an agent that is given to a caller, in characters.
const MESSAGE_CHARS_MAX: usize = 1024;

impl Connection {
    /// Sends `request` and reads the answer, both as JSON.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        action: &'static str,
        method: Method,
        path: &'static str,
        request: &impl Serialize,
        wait: Duration,
    ) -> Result<T> {
        let body = if method == Method::GET {
            Bytes::new()
        } else {
            serde_json::to_vec(request).map_err(|error| Error::failed(action, error))?.into()
        };
        let request = Request::builder()
            .method(method)
            .uri(uri(path))
            .body(whole(body))
            .map_err(|error| Error::failed(action, error))?;
        let answer = async {
            let response = succeed(action, self.send(action, request).await?).await?;
            let body = collect(action, response.into_body(), ANSWER_BYTES_MAX).await?;
            serde_json::from_slice(&body).map_err(|error| Error::failed(action, error))
        };
        within(action, wait, answer).await
    }

    /// Sends `request` as JSON, for an answer that says nothing.
    pub(super) async fn order(
        &self,
        action: &'static str,
        path: &'static str,
        request: &impl Serialize,
        wait: Duration,
    ) -> Result<()> {
        self.ask::<serde::de::IgnoredAny>(action, Method::POST, path, request, wait).await.map(|_| ())
    }
}

/// The address of `path`; the host means nothing.
pub(super) fn uri(path: &str) -> String {
    format!("http://box{path}")
}

/// A body that is there already.
pub(super) fn whole(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

/// Waits for `answer`, but not longer than `wait`.
pub(super) async fn within<T>(
    action: &'static str,
    wait: Duration,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(wait, answer).await.unwrap_or_else(|_| Err(late(action)))
}

/// An agent that let a wait pass.
pub(super) fn late(action: &'static str) -> Error {
    Error::failed(action, "the agent did not answer in time")
}

/// Turns an answer that tells of a failure into that failure.
pub(super) async fn succeed(action: &'static str, response: Response<Incoming>) -> Result<Response<Incoming>> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status == StatusCode::HTTP_VERSION_NOT_SUPPORTED {
        let version = response.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
        return Err(other_version(&printable(version)));
    }
    let body = collect(action, response.into_body(), FAILURE_BYTES_MAX).await?;
    match serde_json::from_slice(&body) {
        Ok(found) => Err(failure(action, found)),
        Err(_) => Err(Error::failed(action, format!("the agent answered {status} without a reason"))),
    }
}

/// What a caller is told of a failure in the box.
pub(super) fn failure(action: &'static str, failure: Failure) -> Error {
    let message = printable(&failure.message);
    match failure.kind {
        FailureKind::Invalid => Error::Invalid(message),
        FailureKind::NotFound => Error::NotFound(message),
        FailureKind::NoSpace => Error::NoSpace,
        FailureKind::Exhausted => Error::Exhausted(message),
        FailureKind::NotSupported => Error::NotSupported(message),
        FailureKind::Internal => Error::failed(action, message),
    }
}

/// An agent of another release.
pub(super) fn other_version(version: &str) -> Error {
    Error::Unavailable(format!(
        "the agent in the box speaks protocol version {version} and this server speaks {VERSION}; \
         the box was made by another release, so destroy it and make a new one"
    ))
}

/// The text of an agent, short and without anything that a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Reads a whole body of at most `bytes_max`.
async fn collect(action: &'static str, mut body: Incoming, bytes_max: usize) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| fault(action, error))?.into_data() else { continue };
        if first.len() + all.len() + piece.len() > bytes_max {
            return Err(Error::failed(action, format!("the agent's answer is larger than {bytes_max} bytes")));
        }
        // Nearly every answer is one piece, which needs no copy.
        if first.is_empty() && all.is_empty() {
            first = piece;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&piece);
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}
