//! Requests with a JSON body and a JSON answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use guest_protocol::{VERSION, VERSION_HEADER};
use http::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Connection, Incoming, request};
use super::wire::{failure, printable};
use crate::{Error, Result};

/// The longest wait for an operation that takes an agent a moment.
pub(super) const SHORT_WAIT: Duration = Duration::from_secs(30);
/// The longest wait for an operation that may walk a whole file system.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(300);
/// The largest description of one thing, such as a file, in bytes: a path, a name and a link's
/// target of 4 KiB each, every byte encoded as six.
pub(super) const DESCRIPTION_BYTES_MAX: usize = 128 * 1024;

impl Connection {
    /// Sends `question` and parses the answer, both as JSON. Answers that may exceed
    /// [`DESCRIPTION_BYTES_MAX`] are arrays; see [`Connection::gather`].
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        action: &'static str,
        method: Method,
        path: &'static str,
        question: &impl Serialize,
        wait: Duration,
    ) -> Result<T> {
        let body = if method == Method::GET {
            Bytes::new()
        } else {
            serde_json::to_vec(question).map_err(|error| Error::failed(action, error))?.into()
        };
        let message = request(action, method, path)?;
        let answer = async {
            let (answer, mut outgoing) = self.begin(action, message).await?;
            outgoing.put(body, true)?;
            succeed(action, answer.await?).await?.into_body().json(action).await
        };
        within(action, wait, answer).await
    }

    /// Sends `question` as JSON and ignores the body of the answer.
    pub(super) async fn order(
        &self,
        action: &'static str,
        path: &'static str,
        question: &impl Serialize,
        wait: Duration,
    ) -> Result<()> {
        self.ask::<serde::de::IgnoredAny>(action, Method::POST, path, question, wait).await.map(|_| ())
    }
}

impl Incoming {
    /// Parses the whole body, of at most [`DESCRIPTION_BYTES_MAX`].
    pub(super) async fn json<T: DeserializeOwned>(self, action: &'static str) -> Result<T> {
        let body = collect(action, self, DESCRIPTION_BYTES_MAX).await?;
        serde_json::from_slice(&body).map_err(|error| Error::failed(action, error))
    }
}

/// Waits for `answer`, for at most `wait`.
pub(super) async fn within<T>(
    action: &'static str,
    wait: Duration,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(wait, answer).await.unwrap_or_else(|_| Err(late(action)))
}

/// Makes the error of an agent that did not answer in time.
pub(super) fn late(action: &'static str) -> Error {
    Error::failed(action, "the agent did not answer in time")
}

/// Turns an answer that reports a failure into an error.
pub(super) async fn succeed(action: &'static str, response: Response<Incoming>) -> Result<Response<Incoming>> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status == StatusCode::HTTP_VERSION_NOT_SUPPORTED {
        let version = response.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
        return Err(other_version(&printable(version)));
    }
    let body = collect(action, response.into_body(), DESCRIPTION_BYTES_MAX).await?;
    match serde_json::from_slice(&body) {
        Ok(found) => Err(failure(action, found)),
        Err(_) => Err(Error::failed(action, format!("the agent answered {status} without a reason"))),
    }
}

/// Makes the error for an agent of another release.
pub(super) fn other_version(version: &str) -> Error {
    Error::Unavailable(format!(
        "the agent in the box speaks protocol version {version} and this server speaks {VERSION}; \
         the box was made by another release, so destroy it and make a new one"
    ))
}

/// Reads a complete body of at most `bytes_max`.
pub(super) async fn collect(action: &'static str, mut body: Incoming, bytes_max: usize) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(piece) = body.piece(action).await? {
        if first.len() + all.len() + piece.len() > bytes_max {
            return Err(Error::failed(action, format!("the agent's response is larger than {bytes_max} bytes")));
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
