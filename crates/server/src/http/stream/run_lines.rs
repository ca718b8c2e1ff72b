//! Answer to a run of code: a line for each event, sent as it happens.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::flow_control::{Outflow, PIECE_BYTES_MIN};
use super::streamed::streamed;
use super::utf8::Text;
use crate::budget::Reservation;
use crate::control::{CodeRun, ContextId, RunEnd, RunEvent, Stream};

/// Most bytes of output in a line; each may become six.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Bytes that JSON makes of one.
const TIMES: usize = 6;
/// Bytes of a line besides its text.
const LINE_BYTES: usize = 128;

/// Event of a run, with its output as text.
#[derive(Debug)]
pub enum Line {
    Started {
        context: ContextId,
        count: u64,
        is_new: bool,
    },
    Output(Stream, String),
    Result {
        is_main: bool,
        data: Map<String, Value>,
    },
    Error {
        name: String,
        value: String,
        traceback: String,
    },
    Dropped,
    /// Nothing happened for a while.
    KeepAlive,
    End(RunEnd),
}

/// Form of the lines of a front.
pub trait Form: Send + 'static {
    /// Silence after which a line says that nothing happens.
    const KEEP_ALIVE: Duration;

    /// Returns the line of an event, without its end; `None` if there is none for it.
    fn line(&self, line: Line) -> Option<String>;

    /// Returns the last lines of a run whose box has failed; `None` to break the connection.
    fn cut(&self, error: &providers::Error) -> Option<Vec<Line>>;
}

struct Lines<F> {
    form: F,
    context: ContextId,
    events: mpsc::Receiver<RunEvent>,
    outflow: Outflow,
    stdout: Text,
    stderr: Text,
    /// Output that has arrived and is not in a line yet.
    piece: Option<(Stream, Bytes)>,
    is_over: bool,
}

/// Lines with the memory that they take.
struct Held {
    lines: Vec<u8>,
    _held: Reservation,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.lines
    }
}

/// Returns the response with a line for each event of a run. Dropping it interrupts the run.
pub fn response<F: Form>(run: CodeRun, form: F, outflow: Outflow) -> Response {
    let CodeRun { context, events } = run;
    let lines = Lines {
        form,
        context,
        events,
        outflow,
        stdout: Text::default(),
        stderr: Text::default(),
        piece: None,
        is_over: false,
    };
    let body = stream::unfold(lines, |mut lines| async move { Some((lines.next().await?, lines)) });
    streamed(Body::from_stream(body), HeaderValue::from_static("application/x-ndjson"))
}

impl<F: Form> Lines<F> {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut out = Vec::new();
        while out.is_empty() {
            if self.is_over {
                return None;
            }
            if let Some((stream, piece)) = self.piece.take() {
                self.part(&mut out, stream, piece).await;
                continue;
            }
            let event = match tokio::time::timeout(F::KEEP_ALIVE, self.events.recv()).await {
                Ok(Some(event)) => event,
                // The task of a run ends with an event.
                Ok(None) => RunEvent::Cut(providers::Error::Gone),
                Err(_) => {
                    self.push(&mut out, Line::KeepAlive);
                    continue;
                }
            };
            match event {
                RunEvent::Output(stream, bytes) => self.piece = Some((stream, bytes)),
                RunEvent::Started { count, is_new } => {
                    let context = self.context.clone();
                    self.push(&mut out, Line::Started { context, count, is_new });
                }
                RunEvent::Result { is_main, data, held } => {
                    self.push(&mut out, Line::Result { is_main, data });
                    return Some(Ok(Bytes::from_owner(Held { lines: out, _held: held })));
                }
                RunEvent::Error { name, value, traceback, held } => {
                    self.push(&mut out, Line::Error { name, value, traceback });
                    return Some(Ok(Bytes::from_owner(Held { lines: out, _held: held })));
                }
                RunEvent::Dropped => self.push(&mut out, Line::Dropped),
                RunEvent::Completions { .. } => {}
                RunEvent::End(end) => {
                    self.flush(&mut out);
                    self.push(&mut out, Line::End(end));
                    self.is_over = true;
                }
                RunEvent::Cut(error) => {
                    self.is_over = true;
                    let Some(lines) = self.form.cut(&error) else {
                        return Some(Err(io::Error::other("the sandbox ended")));
                    };
                    self.flush(&mut out);
                    for line in lines {
                        self.push(&mut out, line);
                    }
                }
            }
        }
        let counted = out.capacity();
        Some(Ok(self.outflow.hand_out(out, counted)))
    }

    /// Turns as much of a piece into a line as there is memory for.
    async fn part(&mut self, out: &mut Vec<u8>, stream: Stream, mut piece: Bytes) {
        let wanted = piece.len().min(TEXT_BYTES_MAX) * TIMES + LINE_BYTES;
        let room = self.outflow.room(PIECE_BYTES_MIN, wanted).await;
        let part = piece.split_to((room.saturating_sub(LINE_BYTES) / TIMES).clamp(1, piece.len()));
        if !piece.is_empty() {
            self.piece = Some((stream, piece));
        }
        let text = match stream {
            Stream::Stdout => self.stdout.take(&part),
            Stream::Stderr => self.stderr.take(&part),
        };
        if !text.is_empty() {
            self.push(out, Line::Output(stream, text));
        }
    }

    /// Writes the incomplete characters held back, with U+FFFD in their place.
    fn flush(&mut self, out: &mut Vec<u8>) {
        for (stream, text) in [(Stream::Stdout, self.stdout.end()), (Stream::Stderr, self.stderr.end())] {
            if !text.is_empty() {
                self.push(out, Line::Output(stream, text));
            }
        }
    }

    fn push(&self, out: &mut Vec<u8>, line: Line) {
        if let Some(line) = self.form.line(line) {
            out.extend_from_slice(line.as_bytes());
            out.push(b'\n');
        }
    }
}
