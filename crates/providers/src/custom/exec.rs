//! Commands: one request each, with the output streamed back.

use std::sync::Arc;
use std::time::Duration;

use api::{ExecMode, ExecRequest, StringMap, TextEncoding};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use client::{ExecEvent, ExecStream};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::boxes::Known;
use super::fault::fault;
use super::guest::CustomGuest;
use super::remote::Remote;
use crate::{ByteStream, Command, Error, ExitStatus, OutputEvent, OutputStream, Result};

const ACTION: &str = "run a command";
/// The longest wait for a command's end to be reported after its deadline.
const LATE_MAX: Duration = Duration::from_secs(30);
/// The largest stdin, in bytes: it is part of the request, which is limited to 1 MiB.
const STDIN_BYTES_MAX: usize = 1024 * 1024;

pub(super) async fn exec(guest: &CustomGuest, command: Command) -> Result<OutputStream> {
    let Some((program, args)) = command.argv.split_first().filter(|(program, _)| !program.is_empty()) else {
        return Err(Error::Invalid("the command is empty; name a program to run".to_owned()));
    };
    let stdin = match command.stdin {
        Some(stdin) => {
            let whole = tokio::time::timeout(command.timeout, whole(stdin)).await;
            Some(whole.unwrap_or_else(|_| Err(Error::Invalid("the standard input did not end in time".to_owned())))?)
        }
        None => None,
    };
    let (stdin, stdin_encoding) = match stdin.map(|bytes| String::from_utf8(bytes.into())) {
        None => (None, TextEncoding::Utf8),
        Some(Ok(text)) => (Some(text), TextEncoding::Utf8),
        Some(Err(error)) => (Some(BASE64.encode(error.as_bytes())), TextEncoding::Base64),
    };
    let request = ExecRequest {
        command: program.clone(),
        args: args.to_vec(),
        mode: ExecMode::Argv,
        env: StringMap(command.env),
        workdir: command.workdir,
        user: command.user,
        timeout: Some(domain::format_duration(command.timeout)),
        stdin,
        stdin_encoding,
        ..ExecRequest::default()
    };
    let started = Instant::now();
    let client = guest.writing()?;
    let stream = guest.ask(ACTION, client.exec_stream(guest.sandbox(), request)).await?;
    let output = Output {
        remote: Arc::clone(&guest.remote),
        known: guest.known.clone(),
        stream,
        started,
        deadline: started + command.timeout,
        held: None,
        next: None,
        ended: false,
    };
    Ok(stream::unfold(output, |mut output| async move {
        let event = output.next().await?;
        Some((event, output))
    })
    .boxed())
}

/// Reads all of stdin, up to [`STDIN_BYTES_MAX`].
async fn whole(mut stdin: ByteStream) -> Result<Bytes> {
    let mut all = BytesMut::new();
    while let Some(piece) = stdin.next().await {
        let piece = piece?;
        if all.len() + piece.len() > STDIN_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the standard input has more than {STDIN_BYTES_MAX} bytes, the limit of this provider; write it to a \
                 file in the sandbox"
            )));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// Events of a running command.
struct Output {
    remote: Arc<Remote>,
    known: Known,
    stream: ExecStream,
    started: Instant,
    deadline: Instant,
    /// A line on stderr that may be the remote service's own message about the end. Held back
    /// until it is clear that the command wrote it.
    held: Option<Bytes>,
    /// Event after the line that was held back.
    next: Option<Result<OutputEvent>>,
    ended: bool,
}

/// Returns whether the bytes may be a message of the remote service itself.
fn is_word(bytes: &[u8]) -> bool {
    bytes == api::SANDBOX_ENDED.as_bytes()
        || bytes == api::PROVIDER_FAILED.as_bytes()
        || bytes.starts_with(api::TIMED_OUT.as_bytes())
}

impl Output {
    /// Waits for the next event, at most until the command's deadline and [`LATE_MAX`]: a service
    /// that only keeps the stream alive is not waited for.
    async fn event(&mut self) -> client::Result<Option<ExecEvent>> {
        let until = self.deadline.max(Instant::now()) + LATE_MAX;
        let event = tokio::time::timeout_at(until, self.stream.next()).await;
        event.unwrap_or_else(|_| Err(client::Error::Timeout { after: until - self.started }))
    }

    async fn next(&mut self) -> Option<Result<OutputEvent>> {
        loop {
            if let Some(event) = self.next.take() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let event = match self.event().await {
                Ok(Some(ExecEvent::Stdout(bytes))) => Ok(OutputEvent::Stdout(bytes)),
                Ok(Some(ExecEvent::Stderr(bytes))) if is_word(&bytes) => match self.held.replace(bytes) {
                    Some(earlier) => return Some(Ok(OutputEvent::Stderr(earlier))),
                    None => continue,
                },
                Ok(Some(ExecEvent::Stderr(bytes))) => Ok(OutputEvent::Stderr(bytes)),
                Ok(Some(ExecEvent::Exit(exit))) => {
                    self.ended = true;
                    if exit.timed_out {
                        self.held.take_if(|line| line.starts_with(api::TIMED_OUT.as_bytes()));
                    }
                    Ok(OutputEvent::Exit(ExitStatus {
                        signal: None,
                        code: exit.code,
                        timed_out: exit.timed_out,
                        oom_killed: exit.oom_killed,
                        pids_exhausted: exit.pids_exhausted,
                        duration: self.started.elapsed(),
                    }))
                }
                Ok(None) => {
                    self.ended = true;
                    Err(Error::failed(ACTION, "the output ended before the command"))
                }
                Err(error) => {
                    self.ended = true;
                    Err(self.cut(error).await)
                }
            };
            match self.held.take() {
                Some(line) => {
                    self.next = Some(event);
                    return Some(Ok(OutputEvent::Stderr(line)));
                }
                None => return Some(event),
            }
        }
    }

    /// Returns the error for a stream that ended without an exit.
    async fn cut(&mut self, error: client::Error) -> Error {
        if matches!(error, client::Error::Cut { .. }) {
            let ended = api::SANDBOX_ENDED.as_bytes();
            if self.held.take_if(|line| *line == ended).is_some() {
                return Error::Gone;
            }
            self.held.take_if(|line| *line == api::PROVIDER_FAILED.as_bytes());
            if let Ok(false) = self.remote.still_runs(&self.known).await {
                return Error::Gone;
            }
        }
        fault(ACTION, None, error)
    }
}
