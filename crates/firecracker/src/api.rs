//! Connection to the API of a process.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

use crate::requests::Change;
use crate::{Error, Result};

/// Limit for questions.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Maximum size of an answer. The longest, refusals, have some hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Connection to the API of a process. Requests are sent one after another.
#[derive(Debug)]
pub struct Api {
    sender: SendRequest<Full<Bytes>>,
}

/// State of a process.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Instance {
    /// Name that it was started with.
    pub id: String,
    /// `Not started`, `Running` or `Paused`.
    pub state: String,
    /// Version of Firecracker.
    pub vmm_version: String,
}

#[derive(Debug, Deserialize)]
struct Fault {
    fault_message: String,
}

impl Api {
    /// Returns the API behind `stream`, a new connection to the socket of a process. A task of `tasks`
    /// serves it until this is dropped.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process has ended.
    pub async fn new(stream: UnixStream, tasks: &TaskTracker) -> Result<Api> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(gone)?;
        tasks.spawn(async move {
            // The request that it interrupts has the error too.
            let _ = connection.await;
        });
        Ok(Api { sender })
    }

    /// Asks for the state of the process.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Silent`], or [`Error::Malformed`].
    pub async fn instance(&mut self) -> Result<Instance> {
        let answer = self.ask(Method::GET, "/", Bytes::new(), ANSWER_WAIT).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::Malformed(error.to_string()))
    }

    /// Changes the machine.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason; [`Error::Gone`], [`Error::Silent`], or
    /// [`Error::Malformed`], after which it is unknown whether the machine has changed.
    pub async fn apply<C: Change>(&mut self, change: &C) -> Result<()> {
        let body = serde_json::to_vec(change).map_err(|error| Error::Malformed(error.to_string()))?;
        self.ask(C::METHOD, &change.path(), body.into(), C::WAIT).await.map(drop)
    }

    async fn ask(&mut self, method: Method, path: &str, body: Bytes, wait: Duration) -> Result<Bytes> {
        let request = Request::builder().method(method).uri(path).header(http::header::HOST, "firecracker");
        let request = request.header(http::header::CONTENT_TYPE, "application/json").body(Full::new(body));
        let request = request.map_err(|error| Error::Malformed(error.to_string()))?;
        let asked = async {
            // After an answer the connection is free a moment later.
            self.sender.ready().await.map_err(gone)?;
            let answer = self.sender.send_request(request).await.map_err(gone)?;
            let status = answer.status();
            Ok((status, content(answer.into_body()).await?))
        };
        let (status, content) = tokio::time::timeout(wait, asked).await.map_err(|_| Error::Silent(wait))??;
        if status.is_success() {
            return Ok(content);
        }
        match serde_json::from_slice::<Fault>(&content) {
            Ok(fault) if status == StatusCode::BAD_REQUEST => Err(Error::Refused(fault.fault_message)),
            Ok(_) | Err(_) => Err(Error::Malformed(format!("status {status} without a reason"))),
        }
    }
}

async fn content(body: Incoming) -> Result<Bytes> {
    match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(content) => Ok(content.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Error::Malformed(format!("more than {ANSWER_BYTES_MAX} bytes")))
        }
        Err(error) => Err(Error::Gone(error.to_string())),
    }
}

fn gone(error: hyper::Error) -> Error {
    // What is not HTTP is reported as an error of the connection too.
    if error.is_parse() { Error::Malformed(error.to_string()) } else { Error::Gone(error.to_string()) }
}
