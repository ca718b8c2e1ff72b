//! Commands: streams of output, input beside them, and their end.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::connect::Messages;
use super::far_process::Far;
use super::fault::Fault;
use super::guest::{E2bGuest, WORKSPACE};
use super::wire::{Config, Data, End, EventMessage, OfProcess, Pty, Start};
use crate::agent::check_command;
use crate::{Command, Control, Error, ExitStatus, Interactive, OutputEvent, Result, Signal, TerminalSize};

const RUN: &str = "run a command";
/// The longest wait for a command's end to be reported after its deadline.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Exit code at the deadline.
const CODE_TIMED_OUT: i32 = 124;
/// Exit code of an end that the service does not explain.
const CODE_UNKNOWN: i32 = 255;
/// Exit codes of a program that is not there, and of one that cannot be executed.
const CODE_NOT_FOUND: i32 = 127;
const CODE_NOT_EXECUTABLE: i32 = 126;
/// First pause between two attempts to follow a process again whose stream broke. Doubles up to [`FOLLOW_PAUSE_MAX`].
const FOLLOW_PAUSE: Duration = Duration::from_millis(250);
const FOLLOW_PAUSE_MAX: Duration = Duration::from_secs(15);

/// A process that was started, or is followed again.
pub(super) struct Followed {
    pub(super) far: Far,
    messages: Messages<EventMessage>,
    pub(super) pid: u32,
}

/// Request to start a process.
pub(super) struct Plan {
    start: Start,
    user: String,
    /// Deadline that the service keeps; `None` for none.
    deadline: Option<Duration>,
}

impl Plan {
    /// Checks a command, and returns what starts it with this tag.
    pub(super) fn of(guest: &E2bGuest, command: &Command, tag: String) -> Result<Plan> {
        let start = start_of(command, tag)?;
        let user = user_of(guest, command.user.as_deref())?.to_owned();
        Ok(Plan { start, user, deadline: (command.timeout < Duration::MAX).then_some(command.timeout) })
    }
}

fn start_of(command: &Command, tag: String) -> Result<Start> {
    check_command(&command.argv, &command.env)?;
    let cwd = command.workdir.clone().unwrap_or_else(|| WORKSPACE.to_owned());
    if !cwd.starts_with('/') || cwd.contains('\0') {
        return Err(Error::Invalid(format!("the working directory {cwd:?} is not an absolute path")));
    }
    let (program, args) =
        command.argv.split_first().ok_or_else(|| Error::Invalid("the command is empty".to_owned()))?;
    let mut envs = command.env.clone();
    let term = if command.terminal.is_some() { "xterm-256color" } else { "xterm" };
    for (name, value) in [("LANG", "C.UTF-8"), ("TERM", term)] {
        envs.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    let process = Config { cmd: program.clone(), args: args.to_vec(), envs, cwd: Some(cwd) };
    let stdin = command.terminal.is_none().then_some(command.stdin.is_some());
    Ok(Start { process, pty: command.terminal.map(Pty::from), tag, stdin })
}

/// Returns the user that the service knows a user of a command by.
fn user_of<'a>(guest: &'a E2bGuest, user: Option<&'a str>) -> Result<&'a str> {
    match user {
        None => Ok(guest.known.envd.user()),
        Some("0") => Ok("root"),
        Some(user) if user.contains(':') => Err(Error::NotSupported(format!(
            "`user` with a group (`{user}`) is not supported by the provider `e2b`; name a user of the sandbox alone"
        ))),
        Some(user) => Ok(user),
    }
}

/// Outcome of a start.
pub(super) enum Begun {
    Followed(Box<Followed>),
    /// The program could not be started; the exit code says why.
    Failed(i32, String),
}

/// Starts a process. If the call is dropped, the process ends.
pub(super) async fn begin(guest: &E2bGuest, plan: Plan) -> Result<Begun> {
    let Plan { start, user, deadline } = plan;
    let far = Far::new(guest, start.tag.clone(), start.pty.is_some());
    let left = Left(Some(far.clone()));
    let opened = async {
        let mut messages = guest.known.envd.stream("/process.Process/Start", &user, &start, deadline).await?;
        let pid = first(&mut messages, guest.known.envd.timeout()).await?;
        Ok((messages, pid))
    };
    let permit = guest.permit().await?;
    let opened: Result<(Messages<EventMessage>, u32), Fault> = opened.await;
    drop(permit);
    match opened {
        Ok((messages, pid)) => {
            left.disarm();
            Ok(Begun::Followed(Box::new(Followed { far, messages, pid })))
        }
        Err(Fault::Rpc { code, message }) => {
            left.disarm();
            match not_started(&message) {
                Some(exit) if code != "unauthenticated" => Ok(Begun::Failed(exit, message)),
                _ => Err(guest.error(RUN, Fault::Rpc { code, message }).await),
            }
        }
        Err(fault) => Err(guest.error(RUN, fault).await),
    }
}

/// Returns the exit code of a program that the service says it cannot start.
fn not_started(message: &str) -> Option<i32> {
    // In the words of Go's `os/exec` and of the kernel; a missing directory is told in others.
    if message.contains("executable file not found")
        || message.contains("fork/exec") && message.contains("no such file")
    {
        Some(CODE_NOT_FOUND)
    } else if message.contains("fork/exec") && message.contains("permission denied") {
        Some(CODE_NOT_EXECUTABLE)
    } else {
        None
    }
}

/// Reads the first message of a process's stream: its start.
async fn first(messages: &mut Messages<EventMessage>, after: Duration) -> Result<u32, Fault> {
    let read = timeout(after, messages.next()).await.map_err(|_| Fault::Timeout(after))??;
    match read.and_then(|message| message.event.start) {
        Some(started) => Ok(started.pid),
        None => Err(Fault::Protocol("the stream of a process does not begin with its start".to_owned())),
    }
}

/// A process whose caller may leave before its end; it is killed then.
pub(super) struct Left(Option<Far>);

impl Left {
    fn disarm(mut self) {
        self.0 = None;
    }

    fn end(&mut self) {
        self.0 = None;
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let Some(far) = self.0.take() else { return };
        // Outside of a runtime nothing can be sent; the service ends the process with its sandbox.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let tasks = far.guest.remote.tasks.clone();
            runtime.spawn(tasks.track_future(async move { far.kill().await }));
        }
    }
}

/// Runs a command that is controlled. Dropping its output kills it.
pub(super) async fn interactive(guest: &E2bGuest, command: Command) -> Result<Interactive> {
    let tag = format!("tidebox-c-{:016x}", rand::random::<u64>());
    let began = Instant::now();
    let plan = Plan::of(guest, &command, tag)?;
    match begin(guest, plan).await? {
        Begun::Followed(followed) => {
            let left = Left(Some(followed.far.clone()));
            Ok(controlled(*followed, command, began, Some(left)))
        }
        Begun::Failed(code, message) => Ok(failed(code, &message)),
    }
}

/// Returns the output of a program that was not started.
pub(super) fn failed(code: i32, message: &str) -> Interactive {
    let text = format!("{}\n", crate::service::words::words(message));
    let exit = ExitStatus {
        code,
        signal: None,
        timed_out: false,
        oom_killed: false,
        pids_exhausted: false,
        duration: Duration::ZERO,
    };
    let events = [OutputEvent::Stderr(text.into()), OutputEvent::Exit(exit)];
    Interactive { output: stream::iter(events.map(Ok)).boxed(), control: Arc::new(Nothing) }
}

/// Control of a command that never ran.
#[derive(Debug)]
struct Nothing;

#[async_trait]
impl Control for Nothing {
    async fn resize(&self, _: TerminalSize) -> Result<()> {
        Ok(())
    }

    async fn signal(&self, _: Signal) -> Result<()> {
        Ok(())
    }
}

/// Returns the output and the control of a process. Its output kills it when it is dropped, if `left` is given.
pub(super) fn controlled(followed: Followed, command: Command, began: Instant, left: Option<Left>) -> Interactive {
    let Followed { far, messages, pid: _ } = followed;
    let mut feeding = JoinSet::new();
    // A terminal has a stdin in any case, whose end is typed.
    let nothing = || far.has_terminal.then(|| stream::empty().boxed());
    if let Some(stdin) = command.stdin.or_else(nothing) {
        feeding.spawn(far.clone().feed(stdin));
    }
    let deadline = (command.timeout < Duration::MAX).then(|| began + command.timeout);
    let output = Output { far: far.clone(), messages, began, deadline, left, _feeding: feeding };
    let output = stream::unfold(Some(output), |output| async move {
        let mut output = output?;
        let event = output.next().await;
        let goes_on = matches!(event, Ok(OutputEvent::Stdout(_) | OutputEvent::Stderr(_)));
        if !goes_on && let Some(left) = &mut output.left {
            left.end();
        }
        Some((event, goes_on.then_some(output)))
    });
    Interactive { output: output.boxed(), control: Arc::new(far) }
}

/// Output of a process.
struct Output {
    far: Far,
    messages: Messages<EventMessage>,
    began: Instant,
    deadline: Option<Instant>,
    /// Kills it if its caller leaves; `None` for a process that its caller may leave.
    left: Option<Left>,
    _feeding: JoinSet<()>,
}

impl Output {
    async fn next(&mut self) -> Result<OutputEvent> {
        loop {
            let message = match self.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Err(Error::failed(RUN, "the output ended before the command")),
                Err(fault) if fault.is_code("deadline_exceeded") || self.is_late() => {
                    return Ok(OutputEvent::Exit(self.timed_out().await));
                }
                Err(fault) => match self.broken(fault).await? {
                    Some(exit) => return Ok(OutputEvent::Exit(exit)),
                    None => continue,
                },
            };
            if let Some(end) = message.event.end {
                self.far.set_ended();
                return Ok(OutputEvent::Exit(exit_of(&end, self.began.elapsed())));
            }
            if let Some(event) = message.event.data.map(output_of).transpose()?.flatten() {
                return Ok(event);
            }
        }
    }

    /// Waits for the next message, at most until a while after the deadline: a service that only keeps the stream alive
    /// is not waited for.
    async fn message(&mut self) -> Result<Option<EventMessage>, Fault> {
        let Some(deadline) = self.deadline else { return self.messages.next().await };
        let until = deadline.max(Instant::now()) + LATE_MAX;
        let message = tokio::time::timeout_at(until, self.messages.next()).await;
        message.unwrap_or_else(|_| Err(Fault::Timeout(until - self.began)))
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns the exit at the deadline, once nothing of the command runs.
    async fn timed_out(&mut self) -> ExitStatus {
        self.far.kill().await;
        ExitStatus {
            code: CODE_TIMED_OUT,
            signal: None,
            timed_out: true,
            oom_killed: false,
            pids_exhausted: false,
            duration: self.began.elapsed(),
        }
    }

    /// Follows a process in the background again whose stream broke: what it wrote meanwhile is lost. Tries for as long
    /// as the sandbox is there, since it may be paused, or the service be away. Returns the exit of one that has ended.
    async fn broken(&mut self, fault: Fault) -> Result<Option<ExitStatus>> {
        if self.left.is_some() || matches!(fault, Fault::Protocol(_) | Fault::Rpc { .. }) {
            return Err(self.far.guest.error(RUN, fault).await);
        }
        let mut pause = FOLLOW_PAUSE;
        loop {
            match follow(&self.far).await {
                Ok(followed) => {
                    self.messages = followed.messages;
                    return Ok(None);
                }
                Err(Error::Gone) => return Err(Error::Gone),
                Err(Error::NotFound(_)) => {
                    self.far.set_ended();
                    let end = End { exit_code: CODE_UNKNOWN, exited: true, ..End::default() };
                    return Ok(Some(exit_of(&end, self.began.elapsed())));
                }
                Err(error) => tracing::debug!(%error, "cannot follow a process; retrying later"),
            }
            let _ = timeout(pause, self.far.guest.known.resumed.notified()).await;
            pause = (pause * 2).min(FOLLOW_PAUSE_MAX);
        }
    }
}

/// Follows a process that runs.
pub(super) async fn follow(far: &Far) -> Result<Followed> {
    let guest = &far.guest;
    let message = OfProcess { process: far.selector() };
    let opened = async {
        let user = guest.known.envd.user();
        let mut messages = guest.known.envd.stream("/process.Process/Connect", user, &message, None).await?;
        let pid = first(&mut messages, guest.known.envd.timeout()).await?;
        Ok((messages, pid))
    };
    let (messages, pid) = guest.ask("follow a process", opened).await?;
    Ok(Followed { far: far.clone(), messages, pid })
}

/// Returns the output of a message; `None` for one without any.
fn output_of(data: Data) -> Result<Option<OutputEvent>> {
    let decoded = |text: &str| {
        let bytes = base64_simd::forgiving_decode_to_vec(text.replace('-', "+").replace('_', "/").as_bytes());
        bytes.map(Bytes::from).map_err(|_| Error::failed(RUN, "the service sent output that is not base64"))
    };
    let event = match data {
        Data { stdout: Some(text), .. } | Data { pty: Some(text), .. } => OutputEvent::Stdout(decoded(&text)?),
        Data { stderr: Some(text), .. } => OutputEvent::Stderr(decoded(&text)?),
        _ => return Ok(None),
    };
    let is_empty = matches!(&event, OutputEvent::Stdout(bytes) | OutputEvent::Stderr(bytes) if bytes.is_empty());
    Ok((!is_empty).then_some(event))
}

/// Returns the exit of a process that has ended.
fn exit_of(end: &End, duration: Duration) -> ExitStatus {
    let status = end.status.trim_end_matches(" (core dumped)");
    let code = status.strip_prefix("exit status ").and_then(|code| code.parse().ok());
    let signal = status.strip_prefix("signal: ").and_then(Signal::of_words);
    let code = match (code, signal) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal.number(),
        (None, None) if end.exited || end.exit_code > 0 => end.exit_code,
        (None, None) => CODE_UNKNOWN,
    };
    ExitStatus { code, signal, timed_out: false, oom_killed: false, pids_exhausted: false, duration }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_end_becomes_the_exit_code_that_every_provider_gives() {
        for (code, exited, status, expected, signal) in [
            (0, true, "exit status 0", 0, None),
            (0, true, "", 0, None),
            (3, true, "exit status 3", 3, None),
            (3, false, "", 3, None),
            (-1, false, "signal: killed", 137, Some("KILL")),
            (-1, false, "signal: segmentation fault (core dumped)", 139, Some("SEGV")),
            (-1, false, "signal: signal 31", 159, Some("SYS")),
            (-1, false, "signal: made up", CODE_UNKNOWN, None),
            (-1, false, "", CODE_UNKNOWN, None),
        ] {
            let exit = exit_of(&End { exit_code: code, exited, status: status.to_owned() }, Duration::ZERO);
            assert_eq!((exit.code, exit.signal.map(Signal::name)), (expected, signal), "{status}");
        }
    }

    #[test]
    fn a_program_that_cannot_be_started_is_told_from_a_directory_that_is_missing() {
        for (message, expected) in [
            ("exec: \"nope\": executable file not found in $PATH", Some(127)),
            ("fork/exec /no/such: no such file or directory", Some(127)),
            ("fork/exec /etc/passwd: permission denied", Some(126)),
            ("cwd '/no' does not exist", None),
            ("no such file or directory", None),
        ] {
            assert_eq!(not_started(message), expected, "{message}");
        }
    }

    #[test]
    fn output_is_read_in_either_alphabet_of_base64() {
        let of = |text: &str| output_of(Data { stdout: Some(text.to_owned()), ..Data::default() });
        for (text, expected) in [("aGk=", &b"hi"[..]), ("aGk", b"hi"), ("-_8=", b"\xfb\xff")] {
            assert_eq!(of(text).unwrap(), Some(OutputEvent::Stdout(Bytes::from_static(expected))));
        }
        assert!(of("a*b").is_err());
        assert_eq!(of("").unwrap(), None);
        assert_eq!(output_of(Data::default()).unwrap(), None);
    }
}
