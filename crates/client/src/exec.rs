//! Commands: buffered and streamed.

use std::fmt::Display;
use std::time::Duration;

use api::{ChunkStream, ExecChunk, ExecRequest, ExecResult, FRAMES_TYPE, PROCESS_HEADER, SocketOutput, TextEncoding};
use base64_simd::STANDARD;
use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Patience, Size};
use crate::error::innermost;
use crate::frame::{Frames, Piece};
use crate::line::{LINE_BYTES_MAX, LineTooLong, Lines};
use crate::sandbox::sandbox_path;
use crate::{Client, Error, Result};

/// Longest time for which a broken line is opened anew. The server keeps the command for longer.
const RESUME_MAX: Duration = Duration::from_secs(45);
/// Pause between two attempts.
const RESUME_PAUSE: Duration = Duration::from_millis(250);
/// Media type of NDJSON.
const LINES_TYPE: &str = "application/x-ndjson";
const WHAT: &str = "the command ended; its exit code is unknown";

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
        let http = streaming(self.request(Method::POST, &sandbox_path(id, "/exec")?, Patience::Long));
        let response = self.send(self.with_json(http, &request)?).await?;
        Ok(ExecStream { chunks: Chunks::of(self, response)?, state: State::Running, resume: None })
    }

    /// Runs a command as [`Client::exec_stream`], and reads on by itself where a line broke: the command
    /// is kept for a minute without a reader. Dropping the stream ends the command after that minute;
    /// [`ExecStream::kill`] ends it at once.
    ///
    /// # Errors
    /// `not_supported` if the provider cannot keep a command, another [`Error::Api`] if the server
    /// refuses, another [`Error`] if no answer comes.
    pub async fn exec_resumable(&self, id: &str, request: ExecRequest) -> Result<ExecStream> {
        let request =
            ExecRequest { stream: true, resumable: true, exit_event: true, encoding: TextEncoding::Base64, ..request };
        let http = streaming(self.request(Method::POST, &sandbox_path(id, "/exec")?, Patience::Long));
        let response = self.send(self.with_json(http, &request)?).await?;
        let process = response.headers().get(PROCESS_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let process =
            process.ok_or_else(|| self.protocol("the resumable stream does not name its process".to_owned()))?;
        let resume = Some(Resume { id: id.to_owned(), process });
        Ok(ExecStream { chunks: Chunks::of(self, response)?, state: State::Running, resume })
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
    /// True if the box had reached its limit of processes and threads, `pids`, and the kernel refused
    /// one while the command ran.
    pub pids_exhausted: bool,
}

/// Output of a running command. Dropping it ends the command.
#[derive(Debug)]
pub struct ExecStream {
    chunks: Chunks,
    state: State,
    /// Process that a broken line goes on with; `None` if it does not go on.
    resume: Option<Resume>,
}

/// Process that a resumable stream belongs to.
#[derive(Debug)]
struct Resume {
    id: String,
    process: String,
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

    /// Kills the command of a resumable stream; another one ends when it is dropped.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn kill(self) -> Result<()> {
        let ExecStream { chunks, state, resume } = self;
        match resume {
            Some(resume) if state == State::Running => chunks.client.remove_process(&resume.id, &resume.process).await,
            _ => Ok(()),
        }
    }

    async fn read(&mut self) -> Result<ExecEvent> {
        loop {
            let broken = match self.chunks.next().await {
                Ok(Some(Chunk::Stdout(bytes))) => return Ok(ExecEvent::Stdout(bytes)),
                Ok(Some(Chunk::Stderr(bytes))) => return Ok(ExecEvent::Stderr(bytes)),
                Ok(Some(Chunk::Exit(exit))) => return Ok(ExecEvent::Exit(exit)),
                Ok(Some(Chunk::Gap(bytes))) => {
                    let reason = format!("{bytes} bytes of output were lost");
                    return Err(Error::Cut { what: WHAT, reason });
                }
                Ok(None) => self.chunks.cut(),
                Err(error @ (Error::Cut { .. } | Error::Timeout { .. })) => error,
                Err(error) => return Err(error),
            };
            self.resume(broken).await?;
        }
    }

    /// Opens the line anew; returns `broken` if that cannot be done.
    async fn resume(&mut self, broken: Error) -> Result<()> {
        let Some(Resume { id, process }) = &self.resume else { return Err(broken) };
        let began = Instant::now();
        let from = self.chunks.seq().unwrap_or(0);
        loop {
            match self.chunks.client.read_process(id, process, from, true).await {
                Ok(chunks) => {
                    self.chunks = chunks.after(from);
                    return Ok(());
                }
                // Neither the process nor the sandbox is there any more.
                Err(error) if error.is_code("not_found") || error.is_code("conflict") => return Err(broken),
                Err(_) if began.elapsed() > RESUME_MAX => return Err(broken),
                Err(_) => sleep(RESUME_PAUSE).await,
            }
        }
    }
}

/// Asks for frames of raw bytes, which an earlier release of the server answers with NDJSON.
pub(crate) fn streaming(http: RequestBuilder) -> RequestBuilder {
    http.header(ACCEPT, format!("{FRAMES_TYPE}, {LINES_TYPE};q=0.5"))
}

/// A piece of an answer that streams output.
#[derive(Debug)]
pub(crate) enum Chunk {
    Stdout(Bytes),
    Stderr(Bytes),
    Gap(u64),
    Exit(Exit),
}

/// Content of an answer that streams output.
#[derive(Debug)]
enum Content {
    Frames(Frames),
    Lines(Lines),
}

/// A frame or a line.
enum Found {
    Piece(Piece),
    Line(Bytes),
}

/// Pieces of an answer that streams output.
#[derive(Debug)]
pub(crate) struct Chunks {
    client: Client,
    response: Response,
    content: Content,
    /// Sequence number after what was read.
    seq: Option<u64>,
}

impl Chunks {
    pub(crate) fn of(client: &Client, response: Response) -> Result<Chunks> {
        let content = match response.headers().get(CONTENT_TYPE).is_some_and(|found| found == FRAMES_TYPE) {
            true => Content::Frames(Frames::default()),
            false => {
                client.check_type(&response, LINES_TYPE)?;
                Content::Lines(Lines::default())
            }
        };
        Ok(Chunks { client: client.clone(), response, content, seq: None })
    }

    fn after(self, seq: u64) -> Chunks {
        Chunks { seq: Some(seq), ..self }
    }

    /// Returns the sequence number after what was read, if the output has any.
    pub(crate) fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// Returns the error for an end before the exit.
    pub(crate) fn cut(&self) -> Error {
        let reason = match &self.content {
            Content::Frames(frames) if frames.is_partial() => "the stream ended within a frame",
            Content::Lines(lines) if lines.is_partial() => "the stream ended within a line",
            Content::Frames(_) | Content::Lines(_) => "the stream ended",
        };
        Error::Cut { what: WHAT, reason: reason.into() }
    }

    /// Returns the next piece that says something; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>> {
        loop {
            let found = match &mut self.content {
                Content::Frames(frames) => frames.next().map(|piece| piece.map(Found::Piece)),
                Content::Lines(lines) => lines
                    .next()
                    .map(|line| line.map(Found::Line))
                    .map_err(|LineTooLong| format!("an output line is longer than {LINE_BYTES_MAX} bytes")),
            };
            let chunk = match found.map_err(|reason| self.client.protocol(reason))? {
                Some(Found::Piece(piece)) => self.piece(piece)?,
                Some(Found::Line(line)) => self.parse(&line)?,
                None if self.fill().await? => continue,
                None => return self.end(),
            };
            if chunk.is_some() {
                return Ok(chunk);
            }
        }
    }

    /// Receives more. Returns `false` at the end.
    async fn fill(&mut self) -> Result<bool> {
        let after = self.client.silence_max();
        let chunk = timeout(after, self.response.chunk())
            .await
            .map_err(|_| Error::Timeout { after })?
            .map_err(|error| Error::Cut { what: WHAT, reason: innermost(&error) })?;
        let Some(chunk) = chunk else { return Ok(false) };
        match &mut self.content {
            Content::Frames(frames) => frames.push(chunk),
            Content::Lines(lines) => lines.push(chunk),
        }
        Ok(true)
    }

    /// Returns `None` for an answer that ends where it may.
    fn end(&self) -> Result<Option<Chunk>> {
        let is_partial = match &self.content {
            Content::Frames(frames) => frames.is_partial(),
            Content::Lines(lines) => lines.is_partial(),
        };
        if is_partial { Err(self.cut()) } else { Ok(None) }
    }

    /// Converts a frame; `None` if it says only where the output begins.
    fn piece(&mut self, piece: Piece) -> Result<Option<Chunk>> {
        let length = match &piece {
            Piece::Stdout(bytes) | Piece::Stderr(bytes) => bytes.len() as u64,
            Piece::Message(_) => 0,
        };
        self.seq = self.seq.map(|seq| seq + length);
        let message = match piece {
            Piece::Stdout(bytes) => return Ok(Some(Chunk::Stdout(bytes))),
            Piece::Stderr(bytes) => return Ok(Some(Chunk::Stderr(bytes))),
            Piece::Message(message) => message,
        };
        match serde_json::from_slice(&message) {
            Ok(SocketOutput::Position { seq }) => {
                let before = self.seq.replace(seq).unwrap_or(seq);
                Ok((seq > before).then(|| Chunk::Gap(seq - before)))
            }
            Ok(SocketOutput::Exit { exit_code, timed_out, oom_killed, pids_exhausted }) => {
                Ok(Some(Chunk::Exit(Exit { code: exit_code, timed_out, oom_killed, pids_exhausted })))
            }
            Ok(_) => Err(self.client.protocol("unexpected message in a raw stream".to_owned())),
            Err(error) => Err(self.client.protocol(format!("cannot parse a message: {error}"))),
        }
    }

    /// Parses a line; `None` if it only keeps the connection alive.
    fn parse(&mut self, line: &[u8]) -> Result<Option<Chunk>> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let chunk: ExecChunk = serde_json::from_slice(line).map_err(|error| self.unparsable(&error))?;
        self.seq = chunk.seq.or(self.seq);
        match chunk.stream {
            ChunkStream::Exit => {
                let code = chunk.data.parse().map_err(|_| self.unparsable(&"the exit code is not a number"))?;
                let ExecChunk { timed_out, oom_killed, pids_exhausted, .. } = chunk;
                let exit = Exit { code, timed_out, oom_killed, pids_exhausted };
                return Ok(Some(Chunk::Exit(exit)));
            }
            ChunkStream::Gap => {
                let bytes = chunk.data.parse().map_err(|_| self.unparsable(&"the size of the gap is not a number"))?;
                return Ok(Some(Chunk::Gap(bytes)));
            }
            ChunkStream::Stdout | ChunkStream::Stderr => {}
        }
        if chunk.data.is_empty() {
            return Ok(None);
        }
        // Decoded in place: a chunk may be large.
        let mut data = chunk.data.into_bytes();
        let length = STANDARD.decode_inplace(&mut data).map_err(|error| self.unparsable(&error))?.len();
        data.truncate(length);
        let data = Bytes::from(data);
        Ok(Some(if chunk.stream == ChunkStream::Stdout { Chunk::Stdout(data) } else { Chunk::Stderr(data) }))
    }

    fn unparsable(&self, reason: &dyn Display) -> Error {
        self.client.protocol(format!("cannot parse an output line: {reason}"))
    }
}
