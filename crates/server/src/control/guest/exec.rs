//! Commands in a box.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::{ProcessDefaults, SandboxId, SecretName};
use futures_util::{StreamExt, stream};
use providers::{ByteStream, Command, ExitStatus, Guest, OutputEvent, OutputStream, Signal, TerminalSize};
use serde_json::json;

use super::captured_output::{Collected, Collector};
use crate::budget::Reservation;
use crate::control::error::{Result, above};
use crate::control::pause::activity::Using;
use crate::control::service::Control;
use crate::events::EventType;
use crate::operation_metrics::Operation;
use store::Sandbox;

/// Command line of an exec request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecCommand {
    /// A line for `/bin/sh -c`, with arguments that are quoted and appended.
    Shell { line: String, args: Vec<String> },
    /// A program and its arguments, passed unchanged.
    Argv(Vec<String>),
}

/// A command with its environment, deadline and input.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    pub command: ExecCommand,
    /// Variables added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// Variables with the values of secrets.
    pub env_secret: BTreeMap<String, SecretName>,
    /// Working directory; `None` for the default.
    pub workdir: Option<String>,
    /// User to run as; `None` for the default.
    pub user: Option<String>,
    /// Deadline; `None` for the default.
    pub timeout: Option<Duration>,
    pub stdin: Option<Bytes>,
}

/// Output of a finished command, up to the bound, and its exit status.
#[derive(Debug)]
pub struct ExecOutcome {
    pub exit: ExitStatus,
    /// Beginning of stdout.
    pub stdout: Collected,
    /// Beginning of stderr.
    pub stderr: Collected,
    /// True if stdout or stderr was cut.
    pub truncated: bool,
    /// Memory reserved for the two streams and for the answer.
    pub held: Reservation,
}

/// A command that has been started.
pub struct Running {
    /// Output and exit of the command. Dropping it kills the command.
    pub output: OutputStream,
    /// Deadline in force.
    pub timeout: Duration,
}

/// Input of an interactive command.
pub struct InteractiveInput {
    pub stdin: ByteStream,
    /// Terminal size; `None` for three separate streams.
    pub terminal: Option<TerminalSize>,
}

/// A running interactive command.
pub struct InteractiveExec {
    pub running: Running,
    /// Control of the command.
    pub handle: Handle,
}

/// Control of a running command: signals and terminal size.
pub struct Handle {
    control: Arc<Control>,
    sandbox: Sandbox,
    command: Arc<dyn providers::Control>,
}

impl Handle {
    pub(in crate::control) fn new(
        control: &Arc<Control>,
        sandbox: Sandbox,
        command: Arc<dyn providers::Control>,
    ) -> Self {
        Self { control: Arc::clone(control), sandbox, command }
    }

    /// Resizes the terminal.
    ///
    /// # Errors
    /// [`crate::control::Error::Invalid`] without a terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.done(self.command.resize(size).await)
    }

    /// Sends a signal to the foreground processes.
    ///
    /// # Errors
    /// [`crate::control::Error::NotSupported`] if the provider cannot send signals.
    pub async fn signal(&self, signal: Signal) -> Result<()> {
        self.done(self.command.signal(signal).await)
    }

    fn done(&self, outcome: providers::Result<()>) -> Result<()> {
        match outcome {
            // The command's output reports its end with more detail.
            Ok(()) | Err(providers::Error::Gone) => Ok(()),
            Err(error) => Err(self.control.guest_error(&self.sandbox, error)),
        }
    }
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

impl ExecRequest {
    /// Returns the command with its deadline, the defaults of its sandbox, and the variables that hold secrets.
    pub(in crate::control) fn command(
        self,
        timeout: Duration,
        of_sandbox: ProcessDefaults,
        secrets: impl IntoIterator<Item = (String, String)>,
    ) -> Command {
        Command {
            argv: self.command.argv(),
            env: of_sandbox.env.into_iter().chain(self.env).chain(secrets).collect(),
            workdir: self.workdir.or(of_sandbox.workdir),
            user: self.user.or(of_sandbox.user),
            timeout,
            stdin: self.stdin.map(|bytes| stream::once(async move { Ok(bytes) }).boxed()),
            terminal: None,
        }
    }
}

/// Quotes `text` as one word of a POSIX shell: single quotes preserve every character but the
/// single quote.
/// <https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_02_02>
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Control {
    /// Starts a command. Dropping the stream kills it.
    ///
    /// # Errors
    /// [`crate::control::Error::LimitReached`] for a deadline above the maximum; else as
    /// [`providers::Guest::exec`].
    pub async fn exec_stream(self: &Arc<Self>, id: &str, request: ExecRequest) -> Result<Running> {
        self.begin(Operation::ExecStream, id, request).await
    }

    /// Checks whether a command could be started in a sandbox.
    ///
    /// # Errors
    /// [`crate::control::Error::NotFound`] and [`crate::control::Error::Conflict`] as for a command.
    pub async fn may_exec(&self, id: &str) -> Result<()> {
        self.usable(id).await.map(|_| ())
    }

    /// Starts an interactive command. Dropping the output kills it. Its input is in `input`, and
    /// not in the request.
    ///
    /// # Errors
    /// As [`Control::exec_stream`]; [`crate::control::Error::NotSupported`] where the provider
    /// has no terminals or cannot control what runs.
    pub async fn exec_interactive(
        self: &Arc<Self>,
        id: &str,
        request: ExecRequest,
        input: InteractiveInput,
    ) -> Result<InteractiveExec> {
        let Prepared { sandbox, observed, guest, command } = self.prepare(Operation::ExecStream, id, request).await?;
        let timeout = command.timeout;
        let command = Command { stdin: Some(input.stdin), terminal: input.terminal, ..command };
        let begun = guest.exec_interactive(command).await.map_err(|error| self.guest_error(&sandbox, error))?;
        let running = Running { output: observed.watch(begun.output), timeout };
        Ok(InteractiveExec { running, handle: Handle::new(self, sandbox, begun.control) })
    }

    async fn begin(self: &Arc<Self>, operation: Operation, id: &str, request: ExecRequest) -> Result<Running> {
        let Prepared { sandbox, observed, guest, command } = self.prepare(operation, id, request).await?;
        let timeout = command.timeout;
        let output = guest.exec(command).await.map_err(|error| self.guest_error(&sandbox, error))?;
        Ok(Running { output: observed.watch(output), timeout })
    }

    /// Returns the defaults of the processes of a sandbox.
    pub(in crate::control) async fn defaults_of(&self, sandbox: &Sandbox) -> Result<ProcessDefaults> {
        // Every sandbox that has any has terms.
        let Some(terms) = &sandbox.terms else { return Ok(ProcessDefaults::default()) };
        Ok(ProcessDefaults { env: self.store.env(&sandbox.id).await?, ..terms.defaults.clone() })
    }

    async fn prepare(self: &Arc<Self>, operation: Operation, id: &str, request: ExecRequest) -> Result<Prepared> {
        let using = self.pauses.in_use.begin(id, operation);
        let sandbox = self.usable(id).await?;
        let limits = self.limits_of(sandbox.owner.as_ref()).await?;
        let timeout = limits.exec_timeout(request.timeout).map_err(|error| {
            self.publish_if_limited(operation.as_str(), Some(&sandbox.provider), above("timeout", error))
        })?;
        let secrets = self.secret_variables(&request.env_secret, sandbox.owner.as_ref()).await?;
        let observed = Observed::begin(self, operation, &sandbox, using);
        let guest = self.guest(&sandbox).await?;
        let command = request.command(timeout, self.defaults_of(&sandbox).await?, secrets);
        Ok(Prepared { sandbox, observed, guest, command })
    }

    /// Runs a command to its end. Its output is collected in memory of `held`, which grows with
    /// it and keeps `answer_bytes` for the answer. Output beyond the caller's memory bound is
    /// cut without an error, since the command has run and must not be run again.
    ///
    /// # Errors
    /// As [`Control::exec_stream`]; a command that fails is no error.
    pub async fn exec(
        self: &Arc<Self>,
        id: &str,
        request: ExecRequest,
        held: Reservation,
        answer_bytes: usize,
    ) -> Result<ExecOutcome> {
        let mut output = self.begin(Operation::Exec, id, request).await?.output;
        let max = self.policy.output_bytes_max;
        let mut collector = Collector::new(max, held, answer_bytes);
        while let Some(event) = output.next().await {
            match event {
                Ok(OutputEvent::Stdout(bytes)) => collector.stdout(&bytes),
                Ok(OutputEvent::Stderr(bytes)) => collector.stderr(&bytes),
                Ok(OutputEvent::Exit(exit)) => {
                    let (stdout, stderr, truncated, held) = collector.end();
                    return Ok(ExecOutcome { exit, stdout, stderr, truncated, held });
                }
                Err(error) => return Err(self.cut(id, error).await),
            }
        }
        Err(self.cut(id, providers::Error::Gone).await)
    }
}

/// A command that is about to be started.
struct Prepared {
    sandbox: Sandbox,
    observed: Observed,
    guest: Arc<dyn Guest>,
    command: Command,
}

/// A running command, observed for metrics and events. Dropping it before the end means that the
/// caller gave up, and counts as a failure.
struct Observed {
    control: Arc<Control>,
    operation: Operation,
    sandbox: SandboxId,
    provider: String,
    started: Instant,
    ended: bool,
    _using: Using,
}

impl Observed {
    fn begin(control: &Arc<Control>, operation: Operation, sandbox: &Sandbox, using: Using) -> Self {
        control.publish(
            EventType::ExecStarted,
            Some(&sandbox.id),
            json!({"stream": operation == Operation::ExecStream}),
        );
        Self {
            control: Arc::clone(control),
            operation,
            sandbox: sandbox.id.clone(),
            provider: sandbox.provider.clone(),
            started: Instant::now(),
            ended: false,
            _using: using,
        }
    }

    /// Passes `output` on and records the end of the command.
    fn watch(mut self, output: OutputStream) -> OutputStream {
        output
            .map(move |event| {
                match &event {
                    Ok(OutputEvent::Exit(exit)) => self.end(Some(*exit)),
                    Err(_) => self.end(None),
                    Ok(OutputEvent::Stdout(_) | OutputEvent::Stderr(_)) => {}
                }
                event
            })
            .boxed()
    }

    fn end(&mut self, exit: Option<ExitStatus>) {
        self.ended = true;
        let (kind, succeeded) = match exit {
            Some(exit) if exit.timed_out => (EventType::ExecTimeout, false),
            Some(exit) if exit.code == 0 => (EventType::ExecCompleted, true),
            // The operation succeeded; the command itself failed.
            Some(_) => (EventType::ExecFailed, true),
            None => (EventType::ExecFailed, false),
        };
        let took_ms = self.started.elapsed().as_millis() as u64;
        let data = match exit {
            Some(exit) => json!({"exit_code": exit.code, "oom_killed": exit.oom_killed, "duration_ms": took_ms}),
            None => json!({"duration_ms": took_ms}),
        };
        self.control.publish(kind, Some(&self.sandbox), data);
        self.control.record(self.operation, &self.provider, succeeded, self.started);
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.ended {
            self.end(None);
        }
    }
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
}
