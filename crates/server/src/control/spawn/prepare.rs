//! Commands that run in a box before its sandbox counts as running.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Limits, PrepareCommand, ProcessDefaults};
use futures_util::StreamExt;
use providers::{Background, BackgroundStdin, ExitStatus, Guest, OutputEvent};

use crate::control::contexts::warm_up::{WarmedUp, warm_up};
use crate::control::error::{Error, Result, above};
use crate::control::guest::exec::{ExecCommand, ExecRequest};
use crate::control::invalid::FailedCommand;

/// Number of the last bytes of a failed command's stderr that its error repeats.
const REPEATED_BYTES: usize = 400;
/// Maximum number of characters of a command that its error repeats.
const NAMED_CHARS: usize = 80;

/// Failure of one of the commands.
enum Failure {
    /// The box or the provider failed.
    Provider(providers::Error),
    /// The error is for the caller as it is.
    Caller(Error),
}

/// Runs commands in a box one after the other. Those in the background are started only.
///
/// # Errors
/// [`Error::PrepareFailed`] with the output of a command that failed or did not end before its deadline; the
/// provider's error as `convert` has it.
pub(in crate::control) async fn prepare(
    guest: &Arc<dyn Guest>,
    commands: &[PrepareCommand],
    limits: &Limits,
    convert: impl Fn(providers::Error) -> Error,
) -> Result<()> {
    for (number, command) in commands.iter().enumerate() {
        run(guest, number + 1, command, limits, &convert).await.map_err(|failure| match failure {
            Failure::Provider(error) => convert(error),
            Failure::Caller(error) => error,
        })?;
    }
    Ok(())
}

async fn run(
    guest: &Arc<dyn Guest>,
    number: usize,
    command: &PrepareCommand,
    limits: &Limits,
    convert: &impl Fn(providers::Error) -> Error,
) -> std::result::Result<(), Failure> {
    let deadline = || limits.exec_timeout(command.timeout).map_err(|error| Failure::Caller(above("timeout", error)));
    if let Some(language) = &command.language {
        let language = language.parse().map_err(|error: kernels::UnknownLanguage| {
            // Of a template that a later release has stored.
            Failure::Caller(Error::Invalid(error.to_string()))
        })?;
        let (begun, deadline) = (Instant::now(), deadline()?);
        let ended = warm_up(guest, language, command, deadline, convert).await.map_err(Failure::Caller)?;
        return code_ended(ended, begun).map_err(|(exit, text)| {
            Failure::Caller(failed(number, command, exit, &text.as_bytes()[..text.len().min(REPEATED_BYTES)]))
        });
    }
    let request = request(command);
    if command.background {
        let stdin = if command.stdin_open { BackgroundStdin::Open } else { BackgroundStdin::Ends };
        let background = Background { name: command.name.clone(), stdin, ..Background::default() };
        let deadline = command.timeout.unwrap_or(Duration::MAX);
        let started = guest.start_process(request.command(deadline, ProcessDefaults::default(), []), background).await;
        return started.map(drop).map_err(Failure::Provider);
    }
    let deadline = deadline()?;
    let mut output =
        guest.exec(request.command(deadline, ProcessDefaults::default(), [])).await.map_err(Failure::Provider)?;
    let mut last = Vec::new();
    while let Some(event) = output.next().await {
        match event.map_err(Failure::Provider)? {
            OutputEvent::Stdout(_) => {}
            OutputEvent::Stderr(bytes) => {
                last.extend_from_slice(&bytes[bytes.len().saturating_sub(REPEATED_BYTES)..]);
                last.drain(..last.len().saturating_sub(REPEATED_BYTES));
            }
            OutputEvent::Exit(ExitStatus { code: 0, timed_out: false, .. }) => return Ok(()),
            OutputEvent::Exit(exit) => return Err(Failure::Caller(failed(number, command, exit, &last))),
        }
    }
    Err(Failure::Provider(providers::Error::Gone))
}

/// Returns the exit that stands for the end of code, and its error.
fn code_ended(ended: WarmedUp, begun: Instant) -> std::result::Result<(), (ExitStatus, String)> {
    let exit = |code, timed_out| ExitStatus {
        code,
        signal: None,
        timed_out,
        oom_killed: false,
        pids_exhausted: false,
        duration: begun.elapsed(),
    };
    match ended {
        WarmedUp::Done => Ok(()),
        WarmedUp::Failed(error) => Err((exit(1, false), error)),
        WarmedUp::Late => Err((exit(124, true), String::new())),
    }
}

fn request(command: &PrepareCommand) -> ExecRequest {
    let PrepareCommand { command: line, args, is_argv, env, workdir, user, timeout, .. } = command.clone();
    ExecRequest {
        command: if is_argv {
            ExecCommand::Argv([vec![line], args].concat())
        } else {
            ExecCommand::Shell { line, args }
        },
        env,
        env_secret: Default::default(),
        workdir,
        user,
        timeout,
        stdin: None,
    }
}

fn failed(number: usize, command: &PrepareCommand, exit: ExitStatus, stderr: &[u8]) -> Error {
    let mut name: String = command.command.chars().take(NAMED_CHARS).collect();
    if name.len() < command.command.len() {
        name.push('…');
    }
    let stderr = String::from_utf8_lossy(stderr).trim().to_owned();
    Error::PrepareFailed(FailedCommand { number, command: name, exit, stderr })
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(code: i32, timed_out: bool, stderr: &str, expected: &str) {
        let exit = ExitStatus {
            code,
            signal: None,
            timed_out,
            oom_killed: false,
            pids_exhausted: false,
            duration: Duration::ZERO,
        };
        let command = PrepareCommand { command: "é".repeat(100), ..PrepareCommand::default() };
        let text = failed(2, &command, exit, stderr.as_bytes()).to_string();
        assert_eq!(text, format!("command 2 of `prepare` (`{}…`) {expected}", "é".repeat(80)));
    }

    #[test]
    fn the_error_of_a_command_names_it_and_repeats_its_last_words() {
        check(7, false, " no such thing\n", "exited with status 7: no such thing");
        check(1, false, "", "exited with status 1");
        let expected =
            "did not end before its deadline; give it a longer `timeout` (`--prepare-timeout` on the command line)";
        check(137, true, "", expected);
    }
}
