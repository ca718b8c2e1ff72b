//! Processes at the service, selected by their tags: their input, signals, and their end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64_simd::STANDARD;
use futures_util::StreamExt;
use tokio::time::sleep;

use super::fault::Fault;
use super::guest::E2bGuest;
use super::http::SMALL_BYTES_MAX;
use super::scripts::{self, Aim, Signalled};
use super::wire::{Empty, Input, OfProcess, Selector, SendInput, SendSignal, Update};
use crate::agent::INPUT_STALL_MAX;
use crate::{ByteStream, Control, Error, Result, Signal, TerminalSize};

/// The most input of one call, in bytes.
const INPUT_BYTES_MAX: usize = 128 * 1024;
/// Pause before input is sent again that the service could not take.
const INPUT_PAUSE: Duration = Duration::from_secs(1);
/// Byte that is typed for the end of stdin.
const END_OF_INPUT: u8 = 4;

/// A process at the service, selected by its tag.
#[derive(Clone)]
pub(super) struct Far {
    pub(super) guest: E2bGuest,
    pub(super) tag: String,
    pub(super) has_terminal: bool,
    has_ended: Arc<AtomicBool>,
}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Far").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl Far {
    pub(super) fn new(guest: &E2bGuest, tag: String, has_terminal: bool) -> Far {
        Far { guest: guest.clone(), tag, has_terminal, has_ended: Arc::default() }
    }

    /// Notes that the process has ended.
    pub(super) fn set_ended(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn selector(&self) -> Selector {
        Selector { tag: self.tag.clone() }
    }

    /// Kills the process with all its descendants. What cannot be reached any more is left.
    pub(super) async fn kill(&self) {
        if self.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let is_killed = scripts::signal(&self.guest, &self.tag, "KILL", Aim::Tree).await;
        let message = SendSignal { process: self.selector(), signal: "SIGNAL_SIGKILL" };
        if !matches!(is_killed, Ok(Signalled::Sent)) {
            let sent: Result<Empty, Fault> =
                self.guest.known.envd.unary("/process.Process/SendSignal", &message, SMALL_BYTES_MAX).await;
            if let Err(fault) = sent {
                tracing::debug!(error = %fault, "cannot kill a command that its caller has left");
            }
        }
    }

    /// Writes a piece of input, and waits until the process has taken it.
    async fn write(&self, bytes: &[u8]) -> Result<(), Fault> {
        for part in bytes.chunks(INPUT_BYTES_MAX) {
            let text = STANDARD.encode_to_string(part);
            let input = if self.has_terminal { Input::Pty(text) } else { Input::Stdin(text) };
            let message = SendInput { process: self.selector(), input };
            let after = self.guest.known.envd.timeout() + INPUT_STALL_MAX;
            loop {
                let sent = self.guest.known.envd.patient::<Empty>("/process.Process/SendInput", &message, after).await;
                match sent {
                    Ok(Empty {}) => break,
                    // The process has certainly not got it: the service is away, or the sandbox is paused.
                    Err(fault) if matches!(fault, Fault::Connect(_)) || fault.is_status(502) => {
                        sleep(INPUT_PAUSE).await
                    }
                    Err(fault) => return Err(fault),
                }
            }
        }
        Ok(())
    }

    /// Ends the input, of which `last` was the last byte.
    async fn end_input(&self, last: Option<u8>) -> Result<(), Fault> {
        if self.has_terminal {
            // In a line that is not ended, the first one only hands the line over.
            let is_in_line = last.is_some_and(|last| last != b'\n');
            return self.write(if is_in_line { &[END_OF_INPUT; 2] } else { &[END_OF_INPUT] }).await;
        }
        let message = OfProcess { process: self.selector() };
        self.guest.known.envd.unary::<Empty>("/process.Process/CloseStdin", &message, SMALL_BYTES_MAX).await.map(drop)
    }

    /// Passes input on up to its end. What a process does not take any more is dropped.
    pub(super) async fn feed(self, mut stdin: ByteStream) {
        let mut last = None;
        while let Some(piece) = stdin.next().await {
            let Ok(piece) = piece else { break };
            last = piece.last().copied().or(last);
            if let Err(fault) = self.write(&piece).await {
                tracing::debug!(error = %fault, "a process takes no more input");
                return;
            }
        }
        let _ = self.end_input(last).await;
    }
}

#[async_trait]
impl Control for Far {
    async fn resize(&self, size: TerminalSize) -> Result<()> {
        if !self.has_terminal {
            return Err(Error::Invalid("the command has no terminal to resize".to_owned()));
        }
        let message = Update { process: self.selector(), pty: size.into() };
        let resized = self.guest.known.envd.unary::<Empty>("/process.Process/Update", &message, SMALL_BYTES_MAX);
        ended_is_fine(self.guest.ask("resize a terminal", resized).await.map(drop))
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.send(signal, if self.has_terminal { Aim::Foreground } else { Aim::Group }).await
    }

    async fn signal_command(&self, signal: Signal) -> Result<()> {
        self.send(signal, Aim::Group).await
    }
}

impl Far {
    /// Sends a signal from within the sandbox, since the service can send two alone, and to the process alone.
    async fn send(&self, signal: Signal, aim: Aim) -> Result<()> {
        if self.has_ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        match (scripts::signal(&self.guest, &self.tag, signal.name(), aim).await, signal.name()) {
            (Ok(Signalled::Sent), _) => Ok(()),
            (_, name @ ("KILL" | "TERM")) => {
                let signal = if name == "KILL" { "SIGNAL_SIGKILL" } else { "SIGNAL_SIGTERM" };
                let message = SendSignal { process: self.selector(), signal };
                let sent =
                    self.guest.known.envd.unary::<Empty>("/process.Process/SendSignal", &message, SMALL_BYTES_MAX);
                ended_is_fine(self.guest.ask("send a signal", sent).await.map(drop))
            }
            (Ok(Signalled::Absent), _) => Ok(()),
            (Ok(Signalled::Impossible), name) => Err(Error::NotSupported(format!(
                "the sandbox's image has no `/bin/sh` that can send SIG{name}; send `KILL` or `TERM`"
            ))),
            (Err(error), _) => Err(error),
        }
    }
}

/// A process that has ended needs neither a signal nor a size.
fn ended_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::NotFound(_) | Error::Failed { .. }) => Ok(()),
        result => result,
    }
}
