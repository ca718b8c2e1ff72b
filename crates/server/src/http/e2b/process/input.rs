//! Input of processes.

use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use domain::State;
use providers::ProcessInfo;

use super::invalid;
use super::table::{living_one, newest_one};
use super::wire::{Empty, Input, ProcessRequest, SendInputRequest, StreamInputRequest};
use crate::control::{Error, ProcessRef};
use crate::http::e2b::connect::{Cut, Incoming, client_stream, unary};
use crate::http::error::{ApiError, Result, RpcCode, rpc};
use crate::http::state::Api;

/// Writes to the stdin of a process, or to its terminal.
pub async fn send_input(api: &Api, id: &str, request: Request) -> Response {
    unary(request, |message: SendInputRequest| async move {
        let found = living_one(&api.control, id, message.process).await?;
        Target::of(&found).write(api, id, message.input).await?;
        Ok(Empty {})
    })
    .await
}

/// Writes a stream of messages to a process, each as it arrives. The end of the stream leaves the stdin open.
pub async fn stream_input(api: &Api, id: &str, request: Request) -> Response {
    client_stream(request, &api.stop, |incoming, _| async move {
        let written = tokio::select! {
            biased;
            () = api.control.stands_still(id) => return Err(Cut::Gone),
            written = written(api, id, incoming) => written,
        };
        let Err(error) = written else { return Ok(Empty {}) };
        // The input may fail before the end of the sandbox is told.
        match api.control.sandbox(id).await {
            Ok(row) if row.state == State::Running => Err(error.into()),
            Ok(_) | Err(_) => Err(Cut::Gone),
        }
    })
    .await
}

async fn written(api: &Api, id: &str, mut incoming: Incoming<StreamInputRequest>) -> Result<()> {
    let mut target: Option<Target> = None;
    while let Some(message) = incoming.next().await? {
        let StreamInputRequest { start, data, keepalive } = message;
        match (start, data, &target) {
            (Some(start), None, None) => {
                let found = living_one(&api.control, id, start.process).await?;
                target = Some(Target::of(&found));
            }
            (None, Some(data), Some(target)) => target.write(api, id, data.input).await?,
            (None, None, _) if keepalive.is_some() => {}
            (Some(_), None, Some(_)) => return Err(invalid("`start` can be sent once")),
            (None, Some(_), None) => return Err(invalid("send `start` with the process first")),
            _ => return Err(invalid("a message has one of `start`, `data` and `keepalive`")),
        }
    }
    Ok(())
}

/// Closes the stdin of a process. One that is closed stays so.
pub async fn close_stdin(api: &Api, id: &str, request: Request) -> Response {
    unary(request, |message: ProcessRequest| async move {
        // The first call may have ended the process before the second comes.
        let found = newest_one(&api.control, id, message.process).await?;
        if !found.is_stdin_open {
            return Ok(Empty {});
        }
        if found.terminal.is_some() {
            return Err(internal("a terminal has no stdin to close; send it Ctrl-D as `pty` input"));
        }
        let process = ProcessRef::Number(found.process);
        match api.control.process_input(id, &process, Bytes::new(), true).await {
            // Another call has closed it since, or the process has ended.
            Ok(()) | Err(Error::Conflict(_) | Error::NoFile(_)) => Ok(Empty {}),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

/// Process that input is for.
struct Target {
    process: ProcessRef,
    has_terminal: bool,
}

impl Target {
    fn of(info: &ProcessInfo) -> Target {
        Target { process: ProcessRef::Number(info.process), has_terminal: info.terminal.is_some() }
    }

    /// Writes input, and waits until the process has taken it.
    async fn write(&self, api: &Api, id: &str, input: Option<Input>) -> Result<()> {
        let bytes = match (input, self.has_terminal) {
            (Some(Input { stdin: Some(bytes), pty: None }), false)
            | (Some(Input { stdin: None, pty: Some(bytes) }), true) => bytes,
            (Some(Input { stdin: Some(_), pty: None }), true) => {
                return Err(internal("the process has a terminal; send its input as `pty`"));
            }
            (Some(Input { stdin: None, pty: Some(_) }), false) => {
                return Err(internal("the process has no terminal; send its input as `stdin`"));
            }
            _ => return Err(invalid("`input` has one of `stdin` and `pty`")),
        };
        match api.control.process_input(id, &self.process, bytes.into(), false).await {
            Ok(()) => Ok(()),
            // Without a stdin, or one that is closed or not read.
            Err(Error::Conflict(conflict)) => Err(internal(conflict.to_string())),
            Err(error) => Err(error.into()),
        }
    }
}

fn internal(text: impl Into<String>) -> ApiError {
    rpc(RpcCode::Internal, text)
}
