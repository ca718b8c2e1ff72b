//! Commands: buffered and streamed.

use api::{ChunkStream, ExecChunk, ExecRequest, ExecResult, TextEncoding};
use base64_simd::STANDARD;
use bytes::Bytes;
use reqwest::{Method, Response};
use tokio::time::timeout;

use crate::connection::{Patience, Size};
use crate::error::innermost;
use crate::line::{LINE_BYTES_MAX, LineTooLong, Lines};
use crate::sandbox::sandbox_path;
use crate::{Client, Error, Result};

/// Commands.
impl Client {
    /// Runs a command in the sandbox `id`, waits until it ends and returns its output. Dropping the
    /// future ends the command. `stream` of the request is ignored.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes. A command that
    /// fails is not an error: its result has the exit code.
    pub async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecResult> {
        let request = ExecRequest { stream: false, ..request };
        let http = self.request(Method::POST, &sandbox_path(id, "/exec")?, Patience::Long);
        self.call(self.with_json(http, &request)?, Size::Output).await
    }

    /// Runs a command in the sandbox `id` and streams its output as raw bytes. Dropping the stream
    /// ends the command. `stream`, `encoding` and `exit_event` of the request are ignored.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn exec_stream(&self, id: &str, request: ExecRequest) -> Result<ExecStream> {
        let request = ExecRequest { stream: true, exit_event: true, encoding: TextEncoding::Base64, ..request };
        let http = self.request(Method::POST, &sandbox_path(id, "/exec")?, Patience::Long);
        let response = self.send(self.with_json(http, &request)?).await?;
        self.check_type(&response, "application/x-ndjson")?;
        Ok(ExecStream { client: self.clone(), response, lines: Lines::default(), state: State::Running })
    }
}

/// An event of a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Bytes that the command wrote to stdout.
    Stdout(Bytes),
    /// Bytes that the command wrote to stderr, or the server's line on an abnormal end.
    Stderr(Bytes),
    /// The end of the command. The last event.
    Exit(Exit),
}

/// Outcome of a command that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code: the command's own; 128+n for signal n, 124 at the deadline, 126 not executable,
    /// 127 not found.
    pub code: i32,
    /// True if the deadline ended the command.
    pub timed_out: bool,
    /// True if the memory limit ended the command or one of its children.
    pub oom_killed: bool,
}

/// Output of a running command. Dropping it ends the command.
#[derive(Debug)]
pub struct ExecStream {
    client: Client,
    response: Response,
    lines: Lines,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Ended,
}

impl ExecStream {
    /// Returns the command's next event; `None` after its exit or an error. Cancel-safe: no event
    /// is lost by dropping this future.
    ///
    /// # Errors
    /// [`Error::Cut`] if the stream ends without the command's exit, [`Error::Timeout`] if the
    /// server sends nothing for [`crate::Options::silence_max`], [`Error::Protocol`] for a line
    /// that cannot be read. The outcome of the command is then unknown.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>> {
        if self.state == State::Ended {
            return Ok(None);
        }
        let event = self.read().await;
        if matches!(event, Ok(ExecEvent::Exit(_)) | Err(_)) {
            self.state = State::Ended;
        }
        event.map(Some)
    }

    async fn read(&mut self) -> Result<ExecEvent> {
        loop {
            let line = self.lines.next().map_err(|LineTooLong| {
                self.client.protocol(format!("a line of output of more than {LINE_BYTES_MAX} bytes"))
            })?;
            match line {
                Some(line) => {
                    if let Some(event) = self.event(&line)? {
                        return Ok(event);
                    }
                }
                None => self.fill().await?,
            }
        }
    }

    async fn fill(&mut self) -> Result<()> {
        const WHAT: &str = "the command ended; how it ended is not known";
        let after = self.client.silence_max();
        let chunk = timeout(after, self.response.chunk())
            .await
            .map_err(|_| Error::Timeout { after })?
            .map_err(|error| Error::Cut { what: WHAT, reason: innermost(&error) })?;
        match chunk {
            Some(chunk) => {
                self.lines.push(chunk);
                Ok(())
            }
            None => {
                let reason = if self.lines.is_partial() { "the stream ends within a line" } else { "the stream ends" };
                Err(Error::Cut { what: WHAT, reason: reason.into() })
            }
        }
    }

    /// Parses a line; `None` if it only keeps the connection alive.
    fn event(&self, line: &[u8]) -> Result<Option<ExecEvent>> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let wrong = |reason: String| self.client.protocol(format!("a line of output that cannot be read: {reason}"));
        let chunk: ExecChunk = serde_json::from_slice(line).map_err(|error| wrong(error.to_string()))?;
        if chunk.stream == ChunkStream::Exit {
            let code = chunk.data.parse().map_err(|_| wrong("its exit code is no number".into()))?;
            return Ok(Some(ExecEvent::Exit(Exit { code, timed_out: chunk.timed_out, oom_killed: chunk.oom_killed })));
        }
        if chunk.data.is_empty() {
            return Ok(None);
        }
        // Decoded in place: a chunk may be large.
        let mut data = chunk.data.into_bytes();
        let length = STANDARD.decode_inplace(&mut data).map_err(|error| wrong(error.to_string()))?.len();
        data.truncate(length);
        let data = Bytes::from(data);
        Ok(Some(if chunk.stream == ChunkStream::Stdout { ExecEvent::Stdout(data) } else { ExecEvent::Stderr(data) }))
    }
}
