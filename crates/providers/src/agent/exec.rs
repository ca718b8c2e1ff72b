//! Commands, as streams of frames to the agent and from it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use guest_protocol::frame::{self, Kind, PAYLOAD_BYTES_MAX};
use guest_protocol::{Action, COMMAND_HEADER, Exec};
use http::Method;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::connection::{Connection, Incoming, Outgoing, request};
use super::frames::Frames;
use super::request::{SHORT_WAIT, succeed, within};
use super::wire::{check_path, milliseconds};
use crate::{
    ByteStream, Command, Control, Error, ExitStatus, Interactive, OutputEvent, OutputStream, ProcessEvent, Result,
    Signal, TerminalSize,
};

const ACTION: &str = "run a command";
/// The total time that a reader waits after a command's deadline for the agent to report its end.
const GRACE: Duration = Duration::from_secs(10);
/// The most bytes of output after the deadline: more than fit the pipe and all windows.
const LATE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Exit code of a command that reached its deadline, the same as that of GNU coreutils'
/// `timeout`.
const DEADLINE_CODE: i32 = 124;

pub(super) async fn exec(connection: &Arc<Connection>, command: Command) -> Result<OutputStream> {
    Ok(start(connection, command).await?.0)
}

/// Starts a command that can be controlled.
pub(super) async fn exec_interactive(connection: &Arc<Connection>, command: Command) -> Result<Interactive> {
    let (output, number) = start(connection, command).await?;
    let number = number.ok_or_else(|| Error::failed(ACTION, "the agent did not name the command"))?;
    Ok(Interactive { output, control: Arc::new(ByNumber { connection: Arc::clone(connection), number }) })
}

/// Starts a command. Also returns the number by which the agent identifies it.
async fn start(connection: &Arc<Connection>, command: Command) -> Result<(OutputStream, Option<u64>)> {
    let permit = connection.command_permit()?;
    let (start, timeout, stdin) = start_frame(command)?;
    let message = request(ACTION, Method::POST, "/exec")?;
    let is_all = stdin.is_none();
    let start = async {
        let (answer, mut outgoing) = connection.begin(ACTION, message).await?;
        outgoing.put(start, is_all)?;
        Ok((succeed(ACTION, answer.await?).await?, outgoing))
    };
    let (response, outgoing) = within(ACTION, SHORT_WAIT, start).await?;
    let number = response.headers().get(COMMAND_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    let output = Output {
        incoming: response.into_body(),
        stdin: stdin.map(|content| Stdin { outgoing, content, frames: VecDeque::new() }),
        frames: Frames::of(ACTION),
        begun: Instant::now(),
        ends_at: deadline(timeout),
        late_wait: Duration::ZERO,
        late_bytes: 0,
        _permit: permit,
        _connection: Arc::clone(connection),
    };
    let output = stream::unfold(Some(output), |output| async move {
        let mut output = output?;
        let event = output.next().await;
        let goes_on = matches!(event, Ok(OutputEvent::Stdout(_) | OutputEvent::Stderr(_)));
        Some((event, goes_on.then_some(output)))
    });
    Ok((output.boxed(), number))
}

/// Control of a running command by its number in the agent.
struct ByNumber {
    connection: Arc<Connection>,
    number: u64,
}

impl fmt::Debug for ByNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByNumber").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ByNumber {
    async fn order(&self, action: Action) -> Result<()> {
        let control = guest_protocol::Control { command: self.number, action };
        self.connection.order("control a command", "/exec/control", &control, SHORT_WAIT).await
    }
}

#[async_trait]
impl Control for ByNumber {
    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.order(Action::Resize(wire_size(size))).await
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.order(Action::Signal(signal.number())).await
    }
}

pub(super) fn wire_size(TerminalSize { cols, rows }: TerminalSize) -> guest_protocol::TerminalSize {
    guest_protocol::TerminalSize { cols, rows }
}

/// Encodes the first frame of `command`, and returns it with the time-out and stdin.
fn start_frame(command: Command) -> Result<(Bytes, Duration, Option<ByteStream>)> {
    let timeout = command.timeout;
    let (start, stdin) = wire_command(command)?;
    Ok((frame::encode(Kind::Start, &start_json(ACTION, &start)?), timeout, stdin))
}

/// Checks and converts `command`, and returns its stdin apart.
pub(super) fn wire_command(command: Command) -> Result<(Exec, Option<ByteStream>)> {
    let Command { argv, env, workdir, user, timeout, stdin, terminal } = command;
    check_command(&argv, &env)?;
    workdir.as_deref().map_or(Ok(()), check_path)?;
    let timeout_ms = milliseconds(timeout);
    let terminal = terminal.map(wire_size);
    Ok((Exec { argv, env, workdir, user, timeout_ms, stdin: stdin.is_some(), terminal }, stdin))
}

/// Encodes the request that starts a command.
pub(super) fn start_json(action: &'static str, start: &impl Serialize) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(start).map_err(|error| Error::failed(action, error))?;
    if json.len() > PAYLOAD_BYTES_MAX {
        return Err(Error::Invalid("the arguments and the environment are larger than 4 MiB".to_owned()));
    }
    Ok(json)
}

/// Refuses a command that no kernel can execute.
pub(crate) fn check_command(argv: &[String], env: &BTreeMap<String, String>) -> Result<()> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(Error::Invalid("the command is empty".to_owned()));
    }
    if argv.iter().any(|arg| arg.contains('\0')) {
        return Err(Error::Invalid("an argument contains a NUL".to_owned()));
    }
    if env.iter().any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')) {
        return Err(Error::Invalid(
            "an environment variable has an empty name, a `=` in its name, or a NUL".to_owned(),
        ));
    }
    Ok(())
}

/// Stdin of a command, sent at the speed of the command. The next piece is not read from
/// `content` before the agent has taken the last one.
struct Stdin {
    outgoing: Outgoing,
    content: ByteStream,
    /// Frame heads and payloads that the agent has not taken yet.
    frames: VecDeque<Bytes>,
}

impl Stdin {
    /// Sends until the end. Cancel-safe.
    async fn send(&mut self) -> Result<()> {
        loop {
            while let Some(next) = self.frames.front_mut() {
                if !self.outgoing.put_some(next).await? {
                    // The command takes no more; its output has the reason.
                    return Ok(());
                }
                if next.is_empty() {
                    self.frames.pop_front();
                }
            }
            match self.content.next().await {
                Some(piece) => self.frames.extend(stdin_frames(piece?)),
                None => return self.outgoing.put(Bytes::new(), true),
            }
        }
    }
}

/// Makes frame heads and payloads, without copying the payloads.
pub(super) fn stdin_frames(mut piece: Bytes) -> Vec<Bytes> {
    let mut frames = Vec::with_capacity(2);
    while !piece.is_empty() {
        let payload = piece.split_to(piece.len().min(PAYLOAD_BYTES_MAX));
        frames.push(Bytes::copy_from_slice(&frame::header(Kind::Stdin, payload.len())));
        frames.push(payload);
    }
    frames
}

/// Returns the time at which the agent has to end the command. A time beyond the clock's range
/// becomes one 136 years ahead.
fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
}

/// A running command. Its stdin is sent while its output is read, so a reader that has stopped
/// stops both. Dropping it resets the HTTP/2 stream, and the agent then kills the command.
struct Output {
    incoming: Incoming,
    /// Input that is still to be sent; `None` after its end.
    stdin: Option<Stdin>,
    frames: Frames,
    begun: Instant,
    ends_at: Instant,
    /// Time that the reader has waited after the deadline. A reader that comes back late still
    /// gets the buffered output.
    late_wait: Duration,
    late_bytes: usize,
    _permit: OwnedSemaphorePermit,
    _connection: Arc<Connection>,
}

impl Output {
    /// Returns the next event. Nothing follows an exit or an error.
    async fn next(&mut self) -> Result<OutputEvent> {
        loop {
            if let Some(event) = self.frames.next_event()? {
                return match event {
                    ProcessEvent::Stdout(bytes) => Ok(OutputEvent::Stdout(bytes)),
                    ProcessEvent::Stderr(bytes) => Ok(OutputEvent::Stderr(bytes)),
                    ProcessEvent::Exit(exit) => Ok(OutputEvent::Exit(exit)),
                    ProcessEvent::Screen(_) | ProcessEvent::Position(_) => {
                        Err(Error::failed(ACTION, "the agent sent a frame of a background process"))
                    }
                };
            }
            let Some(piece) = self.receive().await? else { return Ok(self.given_up()) };
            self.frames.feed(piece);
        }
    }

    /// Receives the next piece. Returns `None` if the grace after the command's deadline has
    /// passed, or if more than [`LATE_BYTES_MAX`] have arrived in it.
    async fn receive(&mut self) -> Result<Option<Bytes>> {
        loop {
            let from = Instant::now().max(self.ends_at);
            let until = from + GRACE.saturating_sub(self.late_wait);
            let stdin = async {
                match &mut self.stdin {
                    Some(stdin) => stdin.send().await,
                    None => std::future::pending().await,
                }
            };
            // No fixed order: a command that writes without a pause also reads.
            let either = async {
                tokio::select! {
                    piece = self.incoming.piece(ACTION) => piece.map(Some),
                    sent = stdin => sent.map(|()| None),
                }
            };
            let piece = tokio::select! {
                biased;
                either = either => match either? {
                    Some(piece) => piece,
                    None => {
                        self.stdin = None;
                        continue;
                    }
                },
                () = tokio::time::sleep_until(until) => return Ok(None),
            };
            let Some(piece) = piece else {
                return Err(Error::failed(ACTION, "the agent stopped in the middle of the output"));
            };
            let now = Instant::now();
            if now > self.ends_at {
                self.late_wait = self.late_wait.saturating_add(now.saturating_duration_since(from));
                self.late_bytes = self.late_bytes.saturating_add(piece.len());
                if self.late_wait > GRACE || self.late_bytes > LATE_BYTES_MAX {
                    return Ok(None);
                }
            }
            return Ok(Some(piece));
        }
    }

    /// Returns an exit for a command whose agent does not report its end after the deadline, for
    /// instance because processes of the box hold the agent up. The stream is dropped next, so
    /// the agent kills the command as soon as it can.
    fn given_up(&self) -> OutputEvent {
        tracing::warn!("an agent has not confirmed the end of a command that reached its deadline");
        OutputEvent::Exit(ExitStatus {
            signal: None,
            code: DEADLINE_CODE,
            timed_out: true,
            oom_killed: false,
            pids_exhausted: false,
            duration: self.begun.elapsed(),
        })
    }
}

#[cfg(test)]
mod test {
    use guest_protocol::frame::HEADER_BYTES;

    use super::*;

    #[test]
    fn a_large_stdin_is_cut_into_frames() {
        let frames = stdin_frames(Bytes::from(vec![7; PAYLOAD_BYTES_MAX + 1]));
        let sizes: Vec<usize> = frames.into_iter().map(|piece| piece.len()).collect();
        assert_eq!(sizes, [HEADER_BYTES, PAYLOAD_BYTES_MAX, HEADER_BYTES, 1]);
    }
}
