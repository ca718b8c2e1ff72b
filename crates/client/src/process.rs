//! Background processes of a sandbox.

use api::{
    ExecRequest, Process, ProcessInput, ProcessResize, ProcessSignal, ProcessStarted, SOCKET_SCREEN, SOCKET_STDERR,
    SOCKET_STDOUT, SocketEof, SocketKind, SocketOutput, SocketResize, SocketSignal, SocketStart, Status, TextEncoding,
};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::connection::{Patience, Size};
use crate::exec::{Chunk, Chunks, Exit, streaming};
use crate::path::segment;
use crate::port::{Socket, cut};
use crate::sandbox::sandbox_path;
use crate::{Client, Error, Result};

/// Largest piece of input in one message, in bytes.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Background processes. `process` is a number or a name.
impl Client {
    /// Starts a command in the background in the sandbox `id`. `background` of the request is set.
    ///
    /// # Errors
    /// `conflict` if a process has the name, `not_supported` if the provider has no background
    /// processes, another [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn start_process(&self, id: &str, request: ExecRequest) -> Result<ProcessStarted> {
        let request = ExecRequest { background: true, stream: false, ..request };
        let http = self.request(Method::POST, &sandbox_path(id, "/exec")?, Patience::Long);
        self.call(self.with_json(http, &request)?, Size::Small).await
    }

    /// Returns the background processes of the sandbox `id`, by number.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn processes(&self, id: &str) -> Result<Vec<Process>> {
        self.get_list(&sandbox_path(id, "/processes")?).await
    }

    /// Returns one background process.
    ///
    /// # Errors
    /// `not_found` if there is none, another [`Error`] if no answer comes.
    pub async fn process(&self, id: &str, process: &str) -> Result<Process> {
        self.get(&process_path(id, process, "")?).await
    }

    /// Reads the output of a background process from the sequence number `from` on: up to its newest
    /// byte, or with `follow` until it ends.
    ///
    /// # Errors
    /// `not_found` if there is none, `bad_request` for a number that it has not reached, another
    /// [`Error`] if no answer comes.
    pub async fn process_output(&self, id: &str, process: &str, from: u64, follow: bool) -> Result<ProcessOutput> {
        let chunks = self.read_process(id, process, from, follow).await?;
        Ok(ProcessOutput { chunks, follow, ended: false })
    }

    pub(crate) async fn read_process(&self, id: &str, process: &str, from: u64, follow: bool) -> Result<Chunks> {
        let query = format!("/output?from={from}&follow={follow}&encoding=base64");
        let http = streaming(self.request(Method::GET, &process_path(id, process, &query)?, Patience::Long));
        Chunks::of(self, self.send(http).await?)
    }

    /// Writes to the stdin of a background process, and ends it with `eof`. Returns when the process
    /// has taken the bytes.
    ///
    /// # Errors
    /// `conflict` if its stdin is not open or not read, another [`Error`] if no answer comes.
    pub async fn process_input(&self, id: &str, process: &str, data: &[u8], eof: bool) -> Result<()> {
        let data = base64_simd::STANDARD.encode_to_string(data);
        let input = ProcessInput { data, encoding: TextEncoding::Base64, eof };
        let path = process_path(id, process, "/stdin")?;
        self.send_json::<Status>(Method::POST, &path, &input, Patience::Long).await.map(drop)
    }

    /// Sends a signal, such as `SIGTERM`, to a background process.
    ///
    /// # Errors
    /// `not_found` if there is none, another [`Error`] if no answer comes.
    pub async fn signal_process(&self, id: &str, process: &str, signal: &str) -> Result<()> {
        let path = process_path(id, process, "/signal")?;
        let body = ProcessSignal { signal: signal.to_owned() };
        self.send_json::<Status>(Method::POST, &path, &body, Patience::Short).await.map(drop)
    }

    /// Gives the terminal of a background process another size.
    ///
    /// # Errors
    /// `bad_request` if it has no terminal, another [`Error`] if no answer comes.
    pub async fn resize_process(&self, id: &str, process: &str, cols: u16, rows: u16) -> Result<()> {
        let path = process_path(id, process, "/resize")?;
        self.send_json::<Status>(Method::POST, &path, &ProcessResize { cols, rows }, Patience::Short).await.map(drop)
    }

    /// Kills a background process with all its descendants, and forgets it.
    ///
    /// # Errors
    /// `not_found` if there is none, another [`Error`] if no answer comes.
    pub async fn remove_process(&self, id: &str, process: &str) -> Result<()> {
        self.delete::<Status>(&process_path(id, process, "")?, Patience::Long).await.map(drop)
    }

    /// Attaches to a background process: from the sequence number `from` on, or where it is `None` with
    /// the screen of its terminal. With `size`, columns and rows, its terminal takes that size first.
    ///
    /// # Errors
    /// `not_found` if there is none, another [`Error`] if no answer comes.
    pub async fn attach_process(
        &self,
        id: &str,
        process: &str,
        from: Option<u64>,
        size: Option<(u16, u16)>,
    ) -> Result<Attached> {
        let mut query = "/attach?binary=true".to_owned();
        if let Some(from) = from {
            query.push_str(&format!("&from={from}"));
        }
        if let Some((cols, rows)) = size {
            query.push_str(&format!("&cols={cols}&rows={rows}"));
        }
        let socket = self.open_socket(&process_path(id, process, &query)?).await?;
        Ok(self.attached(socket, from))
    }

    /// Runs a command that is controlled while it runs. Dropping either half of the result kills it.
    /// `binary` of the request is set.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses the connection, another [`Error`] if no answer comes. What it
    /// finds wrong with the command is the first event.
    pub async fn exec_interactive(&self, id: &str, start: &SocketStart) -> Result<Attached> {
        let start = SocketStart { binary: true, ..start.clone() };
        let mut attached = self.attached(self.open_socket(&sandbox_path(id, "/exec/ws")?).await?, None);
        attached.input.text(&start).await?;
        Ok(attached)
    }

    fn attached(&self, socket: Socket, position: Option<u64>) -> Attached {
        let (sink, source) = socket.split();
        let events = AttachedEvents { client: self.clone(), source, position, ended: false };
        Attached { input: AttachedInput { sink }, events }
    }
}

fn process_path(id: &str, process: &str, rest: &str) -> Result<String> {
    sandbox_path(id, &format!("/processes/{}{rest}", segment("the process", process)?))
}

/// An event of a process's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Bytes that draw the screen of the terminal; not part of the output.
    Screen(Bytes),
    /// Bytes that the process wrote to stdout, or to its terminal.
    Stdout(Bytes),
    /// Bytes that the process wrote to stderr.
    Stderr(Bytes),
    /// This many bytes are missing here: they are no longer kept.
    Gap(u64),
    /// The end of the process. The last event.
    Exit(Exit),
}

/// Output of a background process. Dropping it leaves the process as it is.
#[derive(Debug)]
pub struct ProcessOutput {
    chunks: Chunks,
    follow: bool,
    ended: bool,
}

impl ProcessOutput {
    /// Returns the next event; `None` after the exit, after an error, or at the newest byte of a
    /// process that is not followed. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Cut`] or [`Error::Timeout`] if the line breaks: read on at [`ProcessOutput::seq`].
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        if self.ended {
            return Ok(None);
        }
        let event = match self.chunks.next().await {
            Ok(Some(Chunk::Stdout(bytes))) => Ok(Some(ProcessEvent::Stdout(bytes))),
            Ok(Some(Chunk::Stderr(bytes))) => Ok(Some(ProcessEvent::Stderr(bytes))),
            Ok(Some(Chunk::Gap(bytes))) => Ok(Some(ProcessEvent::Gap(bytes))),
            Ok(Some(Chunk::Exit(exit))) => Ok(Some(ProcessEvent::Exit(exit))),
            Ok(None) if self.follow => Err(self.chunks.cut()),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        self.ended =
            !matches!(event, Ok(Some(ProcessEvent::Stdout(_) | ProcessEvent::Stderr(_) | ProcessEvent::Gap(_))));
        event
    }

    /// Returns the sequence number after the last event: that to read on from. 0 before the first.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.chunks.seq().unwrap_or(0)
    }
}

/// An attachment to a process, in both directions. Dropping it leaves the process as it is.
#[derive(Debug)]
pub struct Attached {
    /// Input of the process.
    pub input: AttachedInput,
    /// Output of the process.
    pub events: AttachedEvents,
}

/// Input of a process.
#[derive(Debug)]
pub struct AttachedInput {
    sink: SplitSink<Socket, Message>,
}

impl AttachedInput {
    /// Sends bytes for stdin.
    ///
    /// # Errors
    /// [`Error::Cut`] if the line is broken; [`AttachedEvents::next`] may say why.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            self.send(Message::Binary(bytes.split_to(PIECE_BYTES_MAX.min(bytes.len())))).await?;
        }
        Ok(())
    }

    /// Ends stdin; of a terminal, the end is typed.
    ///
    /// # Errors
    /// As [`AttachedInput::write`].
    pub async fn end(&mut self) -> Result<()> {
        self.text(&SocketEof { kind: SocketKind::Eof }).await
    }

    /// Gives the terminal another size.
    ///
    /// # Errors
    /// As [`AttachedInput::write`].
    pub async fn resize(&mut self, cols: u16, rows: u16) -> Result<()> {
        self.text(&SocketResize { kind: SocketKind::Resize, cols, rows }).await
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// As [`AttachedInput::write`].
    pub async fn signal(&mut self, signal: &str) -> Result<()> {
        self.text(&SocketSignal { kind: SocketKind::Signal, signal: signal.to_owned() }).await
    }

    async fn text(&mut self, message: &impl serde::Serialize) -> Result<()> {
        self.send(Message::text(serde_json::to_string(message).expect("a message is JSON"))).await
    }

    async fn send(&mut self, message: Message) -> Result<()> {
        self.sink.send(message).await.map_err(|error| cut(error.to_string()))
    }
}

/// Output of a process.
#[derive(Debug)]
pub struct AttachedEvents {
    client: Client,
    source: SplitStream<Socket>,
    /// Sequence number after what was read, once it is known.
    position: Option<u64>,
    ended: bool,
}

impl AttachedEvents {
    /// Returns the next event; `None` after the exit or an error. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Api`] if the sandbox ended or its provider failed; [`Error::Cut`], [`Error::Timeout`]
    /// or [`Error::Protocol`] if the line breaks: attach again at [`AttachedEvents::seq`].
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        if self.ended {
            return Ok(None);
        }
        let event = self.read().await;
        self.ended = matches!(event, Ok(ProcessEvent::Exit(_)) | Err(_));
        event.map(Some)
    }

    /// Returns the sequence number after the last event: that to read on from.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.position.unwrap_or(0)
    }

    async fn read(&mut self) -> Result<ProcessEvent> {
        let after = self.client.silence_max();
        loop {
            match timeout(after, self.source.next()).await.map_err(|_| Error::Timeout { after })? {
                Some(Ok(Message::Binary(mut bytes))) if !bytes.is_empty() => {
                    let kind = bytes.split_to(1);
                    match kind.first().copied() {
                        Some(SOCKET_SCREEN) => return Ok(ProcessEvent::Screen(bytes)),
                        Some(kind @ (SOCKET_STDOUT | SOCKET_STDERR)) => {
                            self.position = self.position.map(|position| position + bytes.len() as u64);
                            return Ok(match kind {
                                SOCKET_STDOUT => ProcessEvent::Stdout(bytes),
                                _ => ProcessEvent::Stderr(bytes),
                            });
                        }
                        _ => return Err(self.client.protocol("unknown frame kind".to_owned())),
                    }
                }
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(SocketOutput::Position { seq }) => {
                        // After a screen, the first position says where the output begins.
                        let before = self.position.replace(seq).unwrap_or(seq);
                        if seq > before {
                            return Ok(ProcessEvent::Gap(seq - before));
                        }
                    }
                    Ok(SocketOutput::Exit { exit_code, timed_out, oom_killed, pids_exhausted }) => {
                        return Ok(ProcessEvent::Exit(Exit { code: exit_code, timed_out, oom_killed, pids_exhausted }));
                    }
                    Ok(SocketOutput::Error { code, message }) => {
                        let status = StatusCode::SWITCHING_PROTOCOLS.as_u16();
                        return Err(Error::Api { status, code, message, request_id: None });
                    }
                    Ok(SocketOutput::Stdout { .. } | SocketOutput::Stderr { .. } | SocketOutput::Screen { .. }) => {
                        return Err(self.client.protocol("a text message instead of a binary one".to_owned()));
                    }
                    Err(error) => return Err(self.client.protocol(format!("cannot parse a message: {error}"))),
                },
                Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(Some(CloseFrame { code: CloseCode::Away, .. })))) => {
                    return Err(cut("the server is shutting down".to_owned()));
                }
                Some(Ok(Message::Close(_))) | None => return Err(cut("the server closed the connection".to_owned())),
                Some(Err(error)) => return Err(cut(error.to_string())),
            }
        }
    }
}
