//! Background processes, as requests to the agent.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use domain::Timestamp;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use guest_protocol as wire_types;
use guest_protocol::frame::{self, Kind};
use guest_protocol::{
    ANSWER_BYTES_MAX, PROCESS_COMMAND_BYTES_MAX, PROCESS_NOTE_BYTES_MAX, PROCESSES_MAX, Pid, ProcessOnly,
    REQUEST_HEADER, StartProcess, process_name_fault,
};
use http::Method;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::array::Bounds;
use super::connection::{Connection, Incoming, Outgoing, request};
use super::exec::{start_json, stdin_frames, wire_command, wire_size};
use super::frames::{Frames, exit_status};
use super::request::{LONG_WAIT, SHORT_WAIT, succeed, within};
use super::wire::{milliseconds, printable, to_header};
use crate::{
    Attach, AttachFrom, Background, BackgroundStdin, ByteStream, Command, Error, ProcessAction, ProcessEvent,
    ProcessEvents, ProcessInfo, ProcessInput, Result, TerminalSize,
};

const START: &str = "start a background process";
const LIST: &str = "list the processes of a box";
const ATTACH: &str = "read the output of a process";
const INPUT: &str = "write to a process";
const CONTROL: &str = "control a process";
const REMOVE: &str = "end a process";
/// The longest time for which a process may take no byte of its stdin.
pub(crate) const INPUT_STALL_MAX: Duration = Duration::from_secs(20);

/// Starts a process.
pub(super) async fn start(
    connection: &Arc<Connection>,
    command: Command,
    background: Background,
) -> Result<ProcessInfo> {
    let Background { name, linger, is_lossless, is_paced, note, input, stdin } = background;
    if let Some(fault) = name.as_deref().and_then(process_name_fault) {
        return Err(Error::Invalid(fault));
    }
    let input_ends = stdin == BackgroundStdin::Ends;
    let (mut exec, _) = wire_command(command)?;
    exec.stdin = !input_ends || !input.is_empty();
    let start = StartProcess {
        exec,
        input: BASE64.encode(&input),
        input_ends,
        name,
        linger_ms: linger.map(milliseconds),
        lossless: is_lossless,
        paced: is_paced,
        note,
    };
    let body: Bytes = start_json(START, &start)?.into();
    let message = request(START, Method::POST, "/processes/start")?;
    let answer = async {
        let (answer, mut outgoing) = connection.begin(START, message).await?;
        outgoing.put(body, true)?;
        succeed(START, answer.await?).await?.into_body().json(START).await
    };
    info(START, within(START, SHORT_WAIT, answer).await?)
}

/// Lists the processes.
pub(super) async fn list(connection: &Arc<Connection>) -> Result<Vec<ProcessInfo>> {
    gathered(connection, "/processes", &()).await
}

/// Lists the processes that have a process id, or had it.
pub(super) async fn of_pid(connection: &Arc<Connection>, pid: u32) -> Result<Vec<ProcessInfo>> {
    // No process of a box has a larger one.
    let Ok(pid) = i32::try_from(pid) else { return Ok(Vec::new()) };
    gathered(connection, "/processes/of-pid", &Pid { pid }).await
}

async fn gathered(
    connection: &Connection,
    path: &'static str,
    body: &(impl Serialize + Sync),
) -> Result<Vec<ProcessInfo>> {
    let bounds = Bounds { text: ANSWER_BYTES_MAX, count: PROCESSES_MAX };
    let mut processes = Vec::new();
    let gathered = connection.gather(LIST, path, body, SHORT_WAIT, bounds, |described| {
        let described = info(LIST, described)?;
        let texts = [&described.name, &described.note].into_iter().flatten().map(String::len).sum::<usize>();
        let held = size_of::<ProcessInfo>() + described.command.len() + texts;
        processes.push(described);
        Ok(held)
    });
    gathered.await?;
    processes.sort_by_key(|process| process.process);
    Ok(processes)
}

fn invalid_process(action: &'static str) -> Error {
    Error::failed(action, "the agent described an invalid process")
}

/// Converts an agent's description of a process.
fn info(action: &'static str, described: wire_types::ProcessInfo) -> Result<ProcessInfo> {
    let wire_types::ProcessInfo {
        process,
        name,
        command,
        pid,
        ended_pid,
        stdin_open,
        note,
        terminal,
        started_ms,
        exit,
        first,
        end,
        readers,
    } = described;
    let pid_of = |pid: Option<i32>| pid.map(u32::try_from).transpose().map_err(|_| invalid_process(action));
    if name.as_deref().and_then(process_name_fault).is_some()
        || first > end
        || command.len() > PROCESS_COMMAND_BYTES_MAX
        || note.as_ref().is_some_and(|note| note.len() > PROCESS_NOTE_BYTES_MAX)
    {
        return Err(invalid_process(action));
    }
    Ok(ProcessInfo {
        process,
        name,
        command: printable(&command),
        pid: pid_of(pid)?,
        ended_pid: pid_of(ended_pid)?,
        is_stdin_open: stdin_open,
        note,
        terminal: terminal.map(|size| TerminalSize { cols: size.cols, rows: size.rows }),
        started: Timestamp::from_millisecond(started_ms).map_err(|error| Error::failed(action, error))?,
        exit: exit.map(exit_status),
        first,
        end,
        readers,
    })
}

/// Builds the head of a request whose body is input.
fn head(action: &'static str, path: &str, details: &impl Serialize) -> Result<http::Request<()>> {
    let mut message = request(action, Method::POST, path)?;
    let header = to_header(details).ok_or_else(|| Error::failed(action, "the request does not fit into a header"))?;
    message.headers_mut().insert(REQUEST_HEADER, header);
    Ok(message)
}

/// Begins to read the output of a process.
pub(super) async fn attach(connection: &Arc<Connection>, process: u64, attach: Attach) -> Result<ProcessEvents> {
    let permit = connection.command_permit()?;
    let from = match attach.from {
        AttachFrom::Position(position) => wire_types::AttachFrom::Position(position),
        AttachFrom::Screen => wire_types::AttachFrom::Screen,
    };
    let message = head(ATTACH, "/processes/attach", &wire_types::Attach { process, from, follow: attach.follow })?;
    let has_input = attach.input.is_some();
    let answer = async {
        let (answer, mut outgoing) = connection.begin(ATTACH, message).await?;
        if !has_input {
            outgoing.put(Bytes::new(), true)?;
        }
        Ok((succeed(ATTACH, answer.await?).await?.into_body(), outgoing))
    };
    let (incoming, outgoing) = within(ATTACH, SHORT_WAIT, answer).await?;
    let mut sender = JoinSet::new();
    if let Some(input) = attach.input {
        sender.spawn(send(outgoing, input));
    }
    let output = Output {
        incoming,
        frames: Frames::of(ATTACH),
        follow: attach.follow,
        _sender: sender,
        _permit: permit,
        _connection: Arc::clone(connection),
    };
    let events = stream::unfold(Some(output), |output| async move {
        let mut output = output?;
        match output.next().await {
            Ok(None) => None,
            Ok(Some(event @ ProcessEvent::Exit(_))) => Some((Ok(event), None)),
            Ok(Some(event)) => Some((Ok(event), Some(output))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(events.boxed())
}

/// Sends the input of a reader, at the speed of the process.
async fn send(mut outgoing: Outgoing, mut input: BoxStream<'static, ProcessInput>) -> Result<()> {
    while let Some(input) = input.next().await {
        let frames = match input {
            ProcessInput::Bytes(bytes) => stdin_frames(bytes),
            ProcessInput::End => vec![frame::encode(Kind::StdinEnd, &[])],
        };
        for mut piece in frames {
            while !piece.is_empty() {
                if !outgoing.put_some(&mut piece).await? {
                    return Ok(());
                }
            }
        }
    }
    outgoing.put(Bytes::new(), true)
}

/// Output of a process. Dropping it resets the stream, and the process goes on.
struct Output {
    incoming: Incoming,
    frames: Frames,
    follow: bool,
    /// Task that sends the input.
    _sender: JoinSet<Result<()>>,
    _permit: OwnedSemaphorePermit,
    _connection: Arc<Connection>,
}

impl Output {
    async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        loop {
            if let Some(event) = self.frames.next_event()? {
                return Ok(Some(event));
            }
            match self.incoming.piece(ATTACH).await? {
                Some(piece) => self.frames.feed(piece),
                None if self.follow => {
                    return Err(Error::failed(ATTACH, "the agent stopped in the middle of the output"));
                }
                None => return Ok(None),
            }
        }
    }
}

/// Writes to the stdin of a process.
pub(super) async fn input(connection: &Connection, process: u64, content: ByteStream, end: bool) -> Result<()> {
    let message = head(INPUT, "/processes/input", &wire_types::ProcessInput { process, end })?;
    let (mut answer, mut outgoing) = within(INPUT, SHORT_WAIT, connection.begin(INPUT, message)).await?;
    let response = tokio::select! {
        biased;
        response = &mut answer => response?,
        sent = write(&mut outgoing, content) => {
            sent?;
            tokio::time::timeout(INPUT_STALL_MAX, answer).await.unwrap_or_else(|_| Err(input_stalled()))?
        }
    };
    within(INPUT, SHORT_WAIT, succeed(INPUT, response)).await.map(|_| ())
}

async fn write(outgoing: &mut Outgoing, mut content: ByteStream) -> Result<()> {
    while let Some(piece) = content.next().await {
        let mut piece = piece?;
        while !piece.is_empty() {
            let put = tokio::time::timeout(INPUT_STALL_MAX, outgoing.put_some(&mut piece)).await;
            if !put.unwrap_or_else(|_| Err(input_stalled()))? {
                return Ok(());
            }
        }
    }
    outgoing.put(Bytes::new(), true)
}

/// Returns the error of a process that reads none of its stdin for long.
pub(crate) fn input_stalled() -> Error {
    let seconds = INPUT_STALL_MAX.as_secs();
    Error::Conflict(format!(
        "the process has not read its stdin for {seconds} seconds; it may still read a part of what was sent"
    ))
}

/// Carries out an action.
pub(super) async fn control(connection: &Connection, process: u64, action: ProcessAction) -> Result<()> {
    let action = match action {
        ProcessAction::Resize(size) => wire_types::Action::Resize(wire_size(size)),
        ProcessAction::Signal(signal) => wire_types::Action::Signal(signal.number()),
        ProcessAction::SignalCommand(signal) => wire_types::Action::SignalCommand(signal.number()),
    };
    let control = wire_types::Control { command: process, action };
    connection.order(CONTROL, "/exec/control", &control, SHORT_WAIT).await
}

/// Ends and forgets a process.
pub(super) async fn remove(connection: &Connection, process: u64) -> Result<()> {
    connection.order(REMOVE, "/processes/remove", &ProcessOnly { process }, LONG_WAIT).await
}
