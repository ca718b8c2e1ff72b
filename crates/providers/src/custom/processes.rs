//! Background processes of a remote sandbox, and commands that are controlled while they run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use api::{ExecMode, ExecRequest, Process, ProcessState, SocketKind, SocketStart, StringMap, TextEncoding};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use client::{Attached, AttachedEvents, AttachedInput, ProcessEvent as Event, ProcessOutput};
use domain::Timestamp;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use guest_protocol::{PROCESS_COMMAND_BYTES_MAX, PROCESS_NOTE_BYTES_MAX, PROCESSES_MAX};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::boxes::Known;
use super::fault::fault;
use super::guest::CustomGuest;
use super::remote::Remote;
use crate::service::words::words;
use crate::{
    Attach, AttachFrom, Background, BackgroundStdin, ByteStream, Command, Control, Error, ExitStatus, Interactive,
    OutputEvent, ProcessAction, ProcessEvent, ProcessEvents, ProcessInfo, ProcessInput, Result, Signal, TerminalSize,
    process_name_fault,
};

const RUN: &str = "run a command";
const START: &str = "start a background process";
const LIST: &str = "list the processes of a box";
const ATTACH: &str = "read the output of a process";
const INPUT: &str = "write to a process";
/// The longest wait for a command's end to be reported after its deadline.
const LATE_MAX: Duration = Duration::from_secs(30);
/// The most input of one request, in bytes: it is base64 there, and JSON is limited to 1 MiB.
const INPUT_BYTES_MAX: usize = 512 * 1024;

/// Starts a process; see [`crate::Guest::start_process`].
pub(super) async fn start(guest: &CustomGuest, command: Command, background: Background) -> Result<ProcessInfo> {
    let Some((program, args)) = command.argv.split_first().filter(|(program, _)| !program.is_empty()) else {
        return Err(Error::Invalid("the command is empty; name a program to run".to_owned()));
    };
    let Background { name, linger, is_lossless, is_paced, note, input, stdin } = background;
    if let Some(fault) = name.as_deref().and_then(process_name_fault) {
        return Err(Error::Invalid(fault));
    }
    let is_endless = command.timeout == Duration::MAX;
    let request = ExecRequest {
        command: program.clone(),
        args: args.to_vec(),
        mode: ExecMode::Argv,
        env: StringMap(command.env),
        workdir: command.workdir,
        user: command.user,
        timeout: (!is_endless).then(|| domain::format_duration(command.timeout)),
        stdin: (!input.is_empty()).then(|| BASE64.encode(&input)),
        stdin_encoding: TextEncoding::Base64,
        name,
        stdin_open: stdin == BackgroundStdin::Open,
        tty: command.terminal.is_some(),
        cols: command.terminal.map(|size| size.cols),
        rows: command.terminal.map(|size| size.rows),
        linger: linger.map(domain::format_duration),
        resumable: is_lossless,
        paced: is_paced,
        note,
        ..ExecRequest::default()
    };
    let client = guest.writing()?;
    let started = guest.ask(START, client.start_process(guest.sandbox(), request)).await;
    let started = started.map_err(|error| {
        // An earlier release knows the field for its own streams alone.
        let is_unknown = matches!(&error, Error::Invalid(text) if is_lossless && text.contains("`resumable`"));
        if is_unknown { cannot_resume(guest) } else { error }
    })?;
    one(guest, started.process_id).await
}

fn cannot_resume(guest: &CustomGuest) -> Error {
    Error::NotSupported(format!(
        "the service behind the provider `{}` runs an earlier release without resumable streams for other servers; \
         upgrade it, or leave out `resumable`",
        guest.remote.name
    ))
}

async fn one(guest: &CustomGuest, process: u64) -> Result<ProcessInfo> {
    let number = process.to_string();
    of_process(guest, process, guest.ask(LIST, guest.remote.client.process(guest.sandbox(), &number)).await)
        .await
        .and_then(info)
}

/// Lists the processes; see [`crate::Guest::processes`].
pub(super) async fn list(guest: &CustomGuest) -> Result<Vec<ProcessInfo>> {
    let processes = guest.ask(LIST, guest.remote.client.processes(guest.sandbox())).await?;
    if processes.len() > PROCESSES_MAX {
        return Err(Error::failed(LIST, "the other service returned more processes than allowed"));
    }
    let mut processes = processes.into_iter().map(info).collect::<Result<Vec<_>>>()?;
    processes.sort_by_key(|process| process.process);
    Ok(processes)
}

fn invalid_process() -> Error {
    Error::failed(LIST, "the other service described an invalid process")
}

fn info(process: Process) -> Result<ProcessInfo> {
    let terminal = match (process.tty, process.cols, process.rows) {
        (true, Some(cols), Some(rows)) => Some(TerminalSize { cols, rows }),
        (false, None, None) => None,
        _ => return Err(invalid_process()),
    };
    if process.command.len() > 4 * PROCESS_COMMAND_BYTES_MAX || process.first_seq > process.last_seq {
        return Err(invalid_process());
    }
    let duration =
        process.duration.as_deref().map(domain::parse_duration).transpose().map_err(|_| invalid_process())?;
    let exit = match (process.state, process.exit_code) {
        (ProcessState::Running, _) => None,
        (ProcessState::Exited, Some(code)) => Some(ExitStatus {
            code,
            signal: None,
            timed_out: process.timed_out,
            oom_killed: process.oom_killed,
            pids_exhausted: process.pids_exhausted,
            duration: duration.unwrap_or_default(),
        }),
        (ProcessState::Exited, None) => return Err(invalid_process()),
    };
    Ok(ProcessInfo {
        process: process.process_id,
        name: process.name.filter(|name| process_name_fault(name).is_none()),
        command: words(&process.command),
        pid: process.pid,
        ended_pid: None,
        is_stdin_open: process.state == ProcessState::Running,
        note: process.note.filter(|note| note.len() <= PROCESS_NOTE_BYTES_MAX),
        terminal,
        started: process.started_at.parse::<Timestamp>().map_err(|_| invalid_process())?,
        exit,
        first: process.first_seq,
        end: process.last_seq,
        readers: process.readers,
    })
}

/// Tells a process that is not there from a sandbox that is not.
async fn of_process<T>(guest: &CustomGuest, process: u64, answer: Result<T>) -> Result<T> {
    match answer {
        Err(Error::Gone) => Err(match guest.remote.still_runs(&guest.known).await {
            Ok(true) => Error::NotFound(format!("there is no process {process} in the sandbox")),
            Ok(false) => Error::Gone,
            Err(error) => error,
        }),
        answer => answer,
    }
}

/// Begins to read the output of a process; see [`crate::Guest::attach_process`].
pub(super) async fn attach(guest: &CustomGuest, process: u64, attach: Attach) -> Result<ProcessEvents> {
    let number = process.to_string();
    let client = guest.writing()?;
    let from = match attach.from {
        AttachFrom::Position(position) => Some(position),
        AttachFrom::Screen => None,
    };
    let mut sender = JoinSet::new();
    let feed = if attach.follow {
        let opened = client.attach_process(guest.sandbox(), &number, from, None);
        let Attached { input, events } = of_process(guest, process, guest.ask(ATTACH, opened).await).await?;
        let given = attach.input.unwrap_or_else(|| stream::pending().boxed());
        sender.spawn(send(Arc::new(Mutex::new(input)), given));
        Feed::Socket(Box::new(events))
    } else {
        let output = client.process_output(guest.sandbox(), &number, from.unwrap_or(0), false);
        Feed::Lines(Box::new(of_process(guest, process, guest.ask(ATTACH, output).await).await?))
    };
    let reading = Reading {
        source: Source::of(guest, ATTACH),
        feed,
        position: from,
        next: from.map(ProcessEvent::Position),
        _sender: sender,
    };
    let events = stream::unfold(Some(reading), |reading| async move {
        let mut reading = reading?;
        match reading.next().await {
            Ok(None) => None,
            Ok(Some(event @ ProcessEvent::Exit(_))) => Some((Ok(event), None)),
            Ok(Some(event)) => Some((Ok(event), Some(reading))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(events.boxed())
}

/// Source of an answer, which knows why the answer broke off.
struct Source {
    remote: Arc<Remote>,
    known: Known,
    action: &'static str,
    started: Instant,
}

impl Source {
    fn of(guest: &CustomGuest, action: &'static str) -> Source {
        let remote = Arc::clone(&guest.remote);
        let known = guest.known.clone();
        Source { remote, known, action, started: Instant::now() }
    }

    async fn broken(&self, error: client::Error) -> Error {
        if matches!(error, client::Error::Cut { .. })
            && let Ok(false) = self.remote.still_runs(&self.known).await
        {
            return Error::Gone;
        }
        fault(self.action, None, error)
    }

    fn status(&self, exit: client::Exit) -> ExitStatus {
        let client::Exit { code, timed_out, oom_killed, pids_exhausted } = exit;
        ExitStatus { code, signal: None, timed_out, oom_killed, pids_exhausted, duration: self.started.elapsed() }
    }
}

/// Stream that the output of a process comes from.
enum Feed {
    Lines(Box<ProcessOutput>),
    Socket(Box<AttachedEvents>),
}

impl Feed {
    async fn next(&mut self) -> client::Result<Option<Event>> {
        match self {
            Feed::Lines(lines) => lines.next().await,
            Feed::Socket(socket) => socket.next().await,
        }
    }

    fn seq(&self) -> u64 {
        match self {
            Feed::Lines(lines) => lines.seq(),
            Feed::Socket(socket) => socket.seq(),
        }
    }
}

/// Output of a process that is read.
struct Reading {
    source: Source,
    feed: Feed,
    /// Position that the reader knows.
    position: Option<u64>,
    /// Event after the position that was said.
    next: Option<ProcessEvent>,
    /// Task that sends the input.
    _sender: JoinSet<()>,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        if let Some(event) = self.next.take() {
            return Ok(Some(event));
        }
        loop {
            let event = match self.feed.next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.source.broken(error).await),
            };
            let (event, len) = match event {
                Event::Screen(bytes) => return Ok(Some(ProcessEvent::Screen(bytes))),
                // The next output is at another position than the last.
                Event::Gap(_) => continue,
                Event::Stdout(bytes) => (ProcessEvent::Stdout(bytes.clone()), bytes.len()),
                Event::Stderr(bytes) => (ProcessEvent::Stderr(bytes.clone()), bytes.len()),
                Event::Exit(exit) => (ProcessEvent::Exit(self.source.status(exit)), 0),
            };
            let after = self.feed.seq();
            let before = after.saturating_sub(len as u64);
            if self.position.replace(after) == Some(before) {
                return Ok(Some(event));
            }
            self.next = Some(event);
            return Ok(Some(ProcessEvent::Position(before)));
        }
    }
}

/// Sends input until it ends; what the service says of it comes with the output.
async fn send(to: Arc<Mutex<AttachedInput>>, mut input: BoxStream<'static, ProcessInput>) {
    while let Some(input) = input.next().await {
        let sent = match input {
            ProcessInput::Bytes(bytes) => to.lock().await.write(bytes).await,
            ProcessInput::End => to.lock().await.end().await,
        };
        if sent.is_err() {
            return;
        }
    }
    // Dropping the sink would end the connection for both directions.
    std::future::pending::<()>().await;
}

/// Writes to the stdin of a process; see [`crate::Guest::process_input`].
pub(super) async fn input(guest: &CustomGuest, process: u64, mut content: ByteStream, end: bool) -> Result<()> {
    let number = process.to_string();
    let client = guest.writing()?;
    let mut has_written = false;
    while let Some(piece) = content.next().await {
        let piece = piece?;
        for part in piece.chunks(INPUT_BYTES_MAX) {
            let written = client.process_input(guest.sandbox(), &number, part, false);
            of_process(guest, process, guest.ask(INPUT, written).await).await?;
            has_written = true;
        }
    }
    if !end {
        return Ok(());
    }
    let ended = client.process_input(guest.sandbox(), &number, &[], true);
    match of_process(guest, process, guest.ask(INPUT, ended).await).await {
        // One that has ended since it took the bytes needs no end of its stdin.
        Err(Error::Conflict(_)) if has_written => Ok(()),
        ended => ended,
    }
}

/// Carries out an action; see [`crate::Guest::control_process`].
pub(super) async fn control(guest: &CustomGuest, process: u64, action: ProcessAction) -> Result<()> {
    const ACTION: &str = "control a process";
    let number = process.to_string();
    let client = guest.writing()?;
    let answer = match action {
        ProcessAction::Resize(TerminalSize { cols, rows }) => {
            guest.ask(ACTION, client.resize_process(guest.sandbox(), &number, cols, rows)).await
        }
        ProcessAction::Signal(signal) | ProcessAction::SignalCommand(signal) => {
            guest.ask(ACTION, client.signal_process(guest.sandbox(), &number, signal.name())).await
        }
    };
    of_process(guest, process, answer).await
}

/// Removes a process; see [`crate::Guest::remove_process`].
pub(super) async fn remove(guest: &CustomGuest, process: u64) -> Result<()> {
    let client = guest.writing()?;
    let removed = guest.ask("end a process", client.remove_process(guest.sandbox(), &process.to_string())).await;
    of_process(guest, process, removed).await
}

/// Runs a command that is controlled; see [`crate::Guest::exec_interactive`].
pub(super) async fn interactive(guest: &CustomGuest, command: Command) -> Result<Interactive> {
    let Some((program, args)) = command.argv.split_first().filter(|(program, _)| !program.is_empty()) else {
        return Err(Error::Invalid("the command is empty; name a program to run".to_owned()));
    };
    let start = SocketStart {
        kind: SocketKind::Start,
        command: program.clone(),
        args: args.to_vec(),
        mode: ExecMode::Argv,
        env: StringMap(command.env),
        env_secret: StringMap::default(),
        workdir: command.workdir,
        user: command.user,
        timeout: Some(domain::format_duration(command.timeout)),
        tty: command.terminal.is_some(),
        cols: command.terminal.map(|size| size.cols),
        rows: command.terminal.map(|size| size.rows),
        binary: true,
    };
    let has_terminal = start.tty;
    let client = guest.writing()?;
    let opened = guest.ask(RUN, client.exec_interactive(guest.sandbox(), &start)).await?;
    let input = Arc::new(Mutex::new(opened.input));
    let mut sender = JoinSet::new();
    match command.stdin {
        Some(stdin) => {
            let bytes = stdin.take_while(|piece| std::future::ready(piece.is_ok()));
            let bytes = bytes.filter_map(|piece| async { piece.ok().map(ProcessInput::Bytes) });
            let given = bytes.chain(stream::once(async { ProcessInput::End })).boxed();
            sender.spawn(send(Arc::clone(&input), given));
        }
        None => {
            sender.spawn(send(Arc::clone(&input), stream::once(async { ProcessInput::End }).boxed()));
        }
    }
    let running = Running {
        source: Source::of(guest, RUN),
        events: opened.events,
        until: Instant::now() + command.timeout + LATE_MAX,
        held: None,
        next: None,
        _sender: sender,
    };
    let output = stream::unfold(Some(running), |running| async move {
        let mut running = running?;
        let event = running.next().await;
        let goes_on = matches!(event, Ok(OutputEvent::Stdout(_) | OutputEvent::Stderr(_)));
        Some((event, goes_on.then_some(running)))
    });
    Ok(Interactive { output: output.boxed(), control: Arc::new(Controlled { input, has_terminal }) })
}

/// A command that is controlled. Dropping it hangs up, and the service kills it.
struct Running {
    source: Source,
    events: AttachedEvents,
    /// Time at which the end is no longer waited for.
    until: Instant,
    /// A line that may be the service's own about the deadline.
    held: Option<Bytes>,
    /// Event after the line that was held back.
    next: Option<OutputEvent>,
    /// Task that sends the input.
    _sender: JoinSet<()>,
}

impl Running {
    async fn next(&mut self) -> Result<OutputEvent> {
        if let Some(event) = self.next.take() {
            return Ok(event);
        }
        loop {
            let event = match tokio::time::timeout_at(self.until.max(Instant::now()), self.events.next()).await {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => return Err(Error::failed(RUN, "the output ended before the command")),
                Ok(Err(error)) => return Err(self.source.broken(error).await),
                Err(_) => return Err(Error::failed(RUN, "the other service does not report the end of a command")),
            };
            let event = match event {
                Event::Stdout(bytes) => OutputEvent::Stdout(bytes),
                Event::Stderr(bytes) if self.held.is_none() && bytes.starts_with(api::TIMED_OUT.as_bytes()) => {
                    self.held = Some(bytes);
                    continue;
                }
                Event::Stderr(bytes) => OutputEvent::Stderr(bytes),
                Event::Exit(exit) => {
                    if exit.timed_out {
                        self.held = None;
                    }
                    OutputEvent::Exit(self.source.status(exit))
                }
                Event::Screen(_) | Event::Gap(_) => continue,
            };
            return Ok(match self.held.take() {
                Some(line) => {
                    self.next = Some(event);
                    OutputEvent::Stderr(line)
                }
                None => event,
            });
        }
    }
}

/// Control of a command of the other service.
struct Controlled {
    input: Arc<Mutex<AttachedInput>>,
    has_terminal: bool,
}

impl fmt::Debug for Controlled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controlled").finish_non_exhaustive()
    }
}

#[async_trait]
impl Control for Controlled {
    async fn resize(&self, size: TerminalSize) -> Result<()> {
        if !self.has_terminal {
            return Err(Error::Invalid("the command has no terminal to resize".to_owned()));
        }
        // What it cannot do the service says instead of the output, and a command that has ended needs
        // neither.
        let _ = self.input.lock().await.resize(size.cols, size.rows).await;
        Ok(())
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        let _ = self.input.lock().await.signal(signal.name()).await;
        Ok(())
    }
}
