//! Commands.

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

impl Client {
    /// Runs a command and returns when it has ended, with what it wrote.
    /// Dropping the future ends the command.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to. How the command
    /// itself ended is no error.
    pub async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecResult> {
        let request = ExecRequest { stream: false, ..request };
        let http = self.request(Method::POST, &sandbox_path(id, "/exec")?, Patience::Long);
        self.call(self.with_json(http, &request)?, Size::Output).await
    }

    /// Runs a command and returns what it writes as it is written, byte by byte
    /// as it was. Dropping the stream ends the command.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn exec_stream(&self, id: &str, request: ExecRequest) -> Result<ExecStream> {
        let request = ExecRequest { stream: true, exit_event: true, encoding: TextEncoding::Base64, ..request };
        let http = self.request(Method::POST, &sandbox_path(id, "/exec")?, Patience::Long);
        let response = self.send(self.with_json(http, &request)?).await?;
        self.check_type(&response, "application/x-ndjson")?;
        Ok(ExecStream { client: self.clone(), response, lines: Lines::default(), state: State::Running })
    }
}

/// What a running command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// It wrote this to stdout.
    Stdout(Bytes),
    /// It, or the server about its end, wrote this to stderr.
    Stderr(Bytes),
    /// It ended. The last event.
    Exit(Exit),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Its own code; 128+n for signal n, 124 at the deadline.
    pub code: i32,
    /// The deadline ended it.
    pub timed_out: bool,
    /// The memory limit ended it or one of its children.
    pub oom_killed: bool,
}

/// The output of a running command, which ends when this is dropped.
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
    /// What the command did next; none after its exit. Safe to cancel: no event
    /// is lost by dropping this future.
    ///
    /// # Errors
    /// [`Error::Cut`] if the stream ends without the command's exit: how it
    /// ended is then unknown. [`Error::Timeout`] if the server says nothing for
    /// [`crate::Options::silence_max`].
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

    /// What a line says; none if it only keeps the connection alive.
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
        // In its place: a chunk may be large.
        let mut data = chunk.data.into_bytes();
        let length = STANDARD.decode_inplace(&mut data).map_err(|error| wrong(error.to_string()))?.len();
        data.truncate(length);
        let data = Bytes::from(data);
        Ok(Some(if chunk.stream == ChunkStream::Stdout { ExecEvent::Stdout(data) } else { ExecEvent::Stderr(data) }))
    }
}
