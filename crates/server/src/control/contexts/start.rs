//! Starts of kernels.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::ProcessDefaults;
use futures_util::StreamExt;
use kernels::{Language, Marker, Message, Piece};
use providers::{
    Attach, AttachFrom, Background, BackgroundStdin, Chain, Command, ExitStatus, Guest, ProcessEvent, ProcessEvents,
    ProcessInfo,
};
use store::Sandbox;

use super::context::{ContextId, Found, NewContext, note, of_process};
use super::kernel::Process;
use super::streams::Streams;
use crate::control::error::{Error, Result};
use crate::control::service::Control;
use crate::control::unavailable::Unavailable;

/// Longest wait for a kernel to accept requests.
const READY_MAX: Duration = Duration::from_secs(60);
/// Most bytes of what a kernel that does not start says that a message repeats.
const SAID_BYTES_MAX: usize = 1000;

/// Reason why a kernel accepts no requests.
enum NotReady {
    /// It ended.
    Ended(ExitStatus),
    /// It says what no driver says.
    Broken(String),
    TooLate,
    Failed(providers::Error),
}

impl Control {
    /// Starts the kernel of a context of a sandbox; see [`start`].
    pub(super) async fn start_kernel(
        &self,
        sandbox: &Sandbox,
        guest: &Arc<dyn Guest>,
        id: &ContextId,
        options: &NewContext,
    ) -> Result<(Process, ProcessInfo)> {
        let defaults = self.defaults_of(sandbox).await?;
        start(guest, id, options, defaults, &|error| self.guest_error(sandbox, error)).await
    }

    /// Returns the contexts of a box.
    pub(super) async fn found_contexts(&self, sandbox: &Sandbox, guest: &Arc<dyn Guest>) -> Result<Vec<Found>> {
        let processes = guest.processes().await.map_err(|error| self.guest_error(sandbox, error))?;
        Ok(processes.iter().filter_map(of_process).collect())
    }
}

/// Starts the kernel of a context, and waits until it accepts requests.
///
/// # Errors
/// [`Error::Invalid`] if the box cannot run the language; the provider's error as `convert` has it.
pub(super) async fn start(
    guest: &Arc<dyn Guest>,
    id: &ContextId,
    options: &NewContext,
    defaults: ProcessDefaults,
    convert: &impl Fn(providers::Error) -> Error,
) -> Result<(Process, ProcessInfo)> {
    let language = options.language;
    let marker = Marker::new(rand::random());
    let note = note(options, &marker)?;
    let attempt = || {
        let background = Background {
            name: Some(id.process_name()),
            is_paced: true,
            note: Some(note.clone()),
            input: Bytes::from(kernels::start(language, &marker)),
            stdin: BackgroundStdin::Open,
            ..Background::default()
        };
        let command = Command {
            argv: language.command(),
            env: defaults.env.clone().into_iter().chain(options.env.clone()).collect(),
            workdir: options.workdir.clone().or(defaults.workdir.clone()),
            user: options.user.clone().or(defaults.user.clone()),
            timeout: Duration::MAX,
            stdin: None,
            terminal: None,
        };
        guest.start_process(command, background)
    };
    let info = match attempt().await {
        Err(providers::Error::Conflict(_)) if remove_left(guest, id).await.map_err(convert)? => attempt().await,
        started => started,
    };
    let info = info.map_err(convert)?;
    let attach = Attach { from: AttachFrom::Position(0), follow: true, input: None };
    let mut output = guest.attach_process(info.process, attach).await.map_err(convert)?;
    let mut said = Vec::new();
    let ready = tokio::time::timeout(READY_MAX, ready(&mut output, &marker, &mut said));
    let not_ready = match ready.await.unwrap_or(Err(NotReady::TooLate)) {
        Ok(position) => return Ok((Process::new(info.process, options.clone(), marker, position), info)),
        Err(not_ready) => not_ready,
    };
    if let Err(error) = guest.remove_process(info.process).await {
        tracing::debug!(error = %Chain(&error), "cannot remove a kernel that did not start");
    }
    Err(match not_ready {
        NotReady::Failed(error) => convert(error),
        NotReady::Ended(exit) => does_not_start(language, &exit, &said),
        NotReady::Broken(text) => Error::Invalid(format!("the `{language}` kernel cannot be used: {text}")),
        NotReady::TooLate => Unavailable::KernelSilent { language, waited: READY_MAX }.into(),
    })
}

/// Removes a kernel of this context that nobody knows of, because its caller hung up while it was started. Returns
/// whether there was one.
async fn remove_left(guest: &Arc<dyn Guest>, id: &ContextId) -> providers::Result<bool> {
    let processes = guest.processes().await?;
    let left = processes.iter().filter_map(of_process).rfind(|found| found.context.id == *id);
    let Some(left) = left else { return Ok(false) };
    guest.remove_process(left.context.process).await?;
    Ok(true)
}

/// Waits until a kernel accepts requests. Returns the position in its output after that.
async fn ready(output: &mut ProcessEvents, marker: &Marker, said: &mut Vec<u8>) -> Result<u64, NotReady> {
    let mut streams = Streams::new(marker, 0);
    while let Some(event) = output.next().await {
        let event = event.map_err(NotReady::Failed)?;
        if let ProcessEvent::Exit(exit) = event {
            return Err(NotReady::Ended(exit));
        }
        streams.push(event);
        while let Some((_, piece)) = streams.next_piece().map_err(|broken| NotReady::Broken(broken.to_string()))? {
            match piece {
                Piece::Message(Message::Ready { .. }) => return Ok(streams.position()),
                Piece::Output(bytes) if said.len() < SAID_BYTES_MAX => said.extend_from_slice(&bytes),
                Piece::Output(_) | Piece::Message(_) | Piece::Dropped => {}
            }
        }
    }
    Err(NotReady::Failed(providers::Error::Gone))
}

/// Returns the error for a kernel that ended before it accepted requests.
fn does_not_start(language: Language, exit: &ExitStatus, said: &[u8]) -> Error {
    let said = String::from_utf8_lossy(&said[..said.len().min(SAID_BYTES_MAX)]);
    let said = said.trim();
    let colon = if said.is_empty() { "" } else { ": " };
    if matches!(exit.code, 126 | 127) {
        // The loader ends a program so that lacks a library.
        return Error::Invalid(format!("cannot run {language}: {}{colon}{said}", language.lacking()));
    }
    let killed = if exit.oom_killed { "; the sandbox is out of memory" } else { "" };
    Error::Invalid(format!("the `{language}` interpreter ended with {} at its start{killed}{colon}{said}", exit.code))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_start_says_why() {
        let exit = |code, oom_killed| ExitStatus {
            code,
            signal: None,
            timed_out: false,
            oom_killed,
            pids_exhausted: false,
            duration: Duration::ZERO,
        };
        for (code, oom_killed, said, expected) in [
            (127, false, "", "cannot run python: `python3` is not in the sandbox; install it"),
            (
                127,
                false,
                "node: libstdc++.so.6: no such file\n",
                "choose an image that has it: node: libstdc++.so.6: no",
            ),
            (1, false, " no module\n", "ended with 1 at its start: no module"),
            (137, true, "", "ended with 137 at its start; the sandbox is out of memory"),
        ] {
            let text = does_not_start(Language::Python, &exit(code, oom_killed), said.as_bytes()).to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}
