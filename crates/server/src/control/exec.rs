//! Exec: a command in a box.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{Command, ExitStatus, OutputEvent, OutputStream};

use super::{Control, Error, Result};

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecCommand {
    /// A line for `/bin/sh -c`, with arguments that are quoted and appended.
    Shell {
        /// The line.
        line: String,
        /// The arguments.
        args: Vec<String>,
    },
    /// A program and its arguments, as they are.
    Argv(Vec<String>),
}

/// A command and how to run it.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// What to run.
    pub command: ExecCommand,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// Where to start.
    pub workdir: Option<String>,
    /// As whom.
    pub user: Option<String>,
    /// The deadline; `None` for the default.
    pub timeout: Option<Duration>,
    /// What it reads.
    pub stdin: Option<Bytes>,
}

/// What a command wrote, up to the bound, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutcome {
    /// How it ended.
    pub exit: ExitStatus,
    /// The beginning of what it wrote to stdout.
    pub stdout: Vec<u8>,
    /// The beginning of what it wrote to stderr.
    pub stderr: Vec<u8>,
    /// Whether either was cut.
    pub truncated: bool,
}

impl ExecCommand {
    fn argv(self) -> Vec<String> {
        match self {
            ExecCommand::Argv(argv) => argv,
            ExecCommand::Shell { mut line, args } => {
                for arg in &args {
                    line.push(' ');
                    line.push_str(&quoted(arg));
                }
                vec!["/bin/sh".to_owned(), "-c".to_owned(), line]
            }
        }
    }
}

/// `text` as one word of a POSIX shell: single quotes keep everything but
/// themselves. <https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_02_02>
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Control {
    /// The deadline that a command gets.
    ///
    /// # Errors
    /// [`Error::LimitReached`] for one above the maximum.
    pub fn exec_timeout(&self, request: &ExecRequest) -> Result<Duration> {
        self.policy.limits.exec_timeout(request.timeout).map_err(|above| {
            let max = domain::format_duration(above.max);
            Error::LimitReached(format!("`timeout` is above the maximum of {max}; ask for {max} or less"))
        })
    }

    /// Starts a command. Dropping the stream kills it.
    ///
    /// # Errors
    /// [`Error::LimitReached`] for a deadline above the maximum; else as
    /// [`providers::Guest::exec`].
    pub async fn exec_stream(&self, id: &str, request: ExecRequest) -> Result<OutputStream> {
        let sandbox = self.usable(id).await?;
        let timeout = self.exec_timeout(&request)?;
        let guest = self.guest(&sandbox).await?;
        let command = Command {
            argv: request.command.argv(),
            env: request.env,
            workdir: request.workdir,
            user: request.user,
            timeout,
            stdin: request.stdin.map(|bytes| stream::once(async move { Ok(bytes) }).boxed()),
        };
        guest.exec(command).await.map_err(|error| self.guest_error(&sandbox, error))
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// As [`Control::exec_stream`]; a command that fails is no error.
    pub async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecOutcome> {
        let mut output = self.exec_stream(id, request).await?;
        let mut outcome = ExecOutcome {
            exit: ExitStatus { code: 0, timed_out: false, oom_killed: false, duration: Duration::ZERO },
            stdout: Vec::new(),
            stderr: Vec::new(),
            truncated: false,
        };
        let max = self.policy.output_bytes_max;
        while let Some(event) = output.next().await {
            match event {
                Ok(OutputEvent::Stdout(bytes)) => outcome.truncated |= append(&mut outcome.stdout, &bytes, max),
                Ok(OutputEvent::Stderr(bytes)) => outcome.truncated |= append(&mut outcome.stderr, &bytes, max),
                Ok(OutputEvent::Exit(exit)) => {
                    outcome.exit = exit;
                    return Ok(outcome);
                }
                Err(error) => return Err(self.exec_cut(id, error).await),
            }
        }
        Err(self.exec_cut(id, providers::Error::Gone).await)
    }

    /// What the end of a command's stream without an exit means to the caller.
    async fn exec_cut(&self, id: &str, error: providers::Error) -> Error {
        match self.usable(id).await {
            Ok(sandbox) => self.guest_error(&sandbox, error),
            Err(error) => error,
        }
    }
}

/// Appends what fits below `max`; whether anything did not.
fn append(buffer: &mut Vec<u8>, bytes: &[u8], max: usize) -> bool {
    let room = max.saturating_sub(buffer.len());
    buffer.extend_from_slice(&bytes[..bytes.len().min(room)]);
    bytes.len() > room
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn arguments_reach_the_shell_as_they_are() {
        let command = ExecCommand::Shell {
            line: "echo".into(),
            args: vec!["a b".into(), "it's".into(), "$HOME;".into(), String::new()],
        };
        assert_eq!(command.argv(), ["/bin/sh", "-c", r"echo 'a b' 'it'\''s' '$HOME;' ''"]);
    }

    #[test]
    fn output_beyond_the_bound_is_cut_and_said_so() {
        let mut buffer = vec![1, 2];
        assert!(!append(&mut buffer, &[3], 3));
        assert!(append(&mut buffer, &[4], 3));
        assert_eq!(buffer, [1, 2, 3]);
    }
}
