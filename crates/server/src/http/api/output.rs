//! Streamed output of a command or a process, in the form that the caller asked for.

pub mod frames;
pub mod ndjson;

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt;
use http_body::Frame;
use providers::{Chain, ExitStatus, OutputEvent, OutputStream, ProcessEvent, ProcessEvents};

use super::wire;
use crate::http::stream::streamed::streamed;

/// Silence after which a stream carries something that says nothing.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Trailer with the exit code.
pub const EXIT_CODE: &str = "x-exit-code";

/// Form of the stream, as the caller asked for it.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// True for frames of raw bytes instead of NDJSON, for which the next two do not count.
    pub is_raw: bool,
    /// Base64 instead of text.
    pub base64: bool,
    /// True if an `exit` chunk comes last.
    pub exit_event: bool,
    /// Deadline of the command, for the message when it passes.
    pub timeout: Option<Duration>,
}

/// Converts the events of a command.
pub fn of_command(output: OutputStream) -> ProcessEvents {
    output.map(|output| output.map(process_event)).boxed()
}

fn process_event(event: OutputEvent) -> ProcessEvent {
    match event {
        OutputEvent::Stdout(bytes) => ProcessEvent::Stdout(bytes),
        OutputEvent::Stderr(bytes) => ProcessEvent::Stderr(bytes),
        OutputEvent::Exit(exit) => ProcessEvent::Exit(exit),
    }
}

/// Returns the response with this body, which is neither kept nor gathered on its way.
pub fn answer(body: Body, kind: HeaderValue) -> Response {
    let mut response = streamed(body, kind);
    response.headers_mut().insert(header::TRAILER, HeaderValue::from_static(EXIT_CODE));
    response
}

/// Returns the trailer with an exit code.
pub fn exit_trailer(code: i32) -> Frame<Bytes> {
    Frame::trailers(HeaderMap::from_iter([(HeaderName::from_static(EXIT_CODE), HeaderValue::from(code))]))
}

/// Returns what stderr says of a command that reached its deadline.
pub fn timed_out(exit: &ExitStatus, timeout: Option<Duration>) -> Option<String> {
    let timeout = timeout.filter(|_| exit.timed_out)?;
    Some(format!("{}{}\n", api::TIMED_OUT, wire::duration(timeout)))
}

/// Returns what stderr says where a stream ends without an exit. Output that `has_positions` says nothing
/// where it goes on: its client reads on, and counts what it is sent.
pub fn reason_of_cut(error: &providers::Error, has_positions: bool) -> Option<&'static str> {
    if matches!(error, providers::Error::Gone) {
        return Some(api::SANDBOX_ENDED);
    }
    if has_positions {
        tracing::warn!(error = %Chain(error), "the output of a process was interrupted; its reader can resume");
        return None;
    }
    tracing::error!(error = %Chain(error), "the stream of a command was interrupted");
    Some(api::PROVIDER_FAILED)
}
