//! `tidebox attach`: a background process at this terminal. What `exec -i` and `shell` do once their
//! process runs is the same.

mod keys;
mod terminal;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use client::{Attached, AttachedEvents, AttachedInput, Client, Error, ProcessEvent};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use self::keys::DetachKeys;
use self::keys::KeyFilter;
use self::terminal::RawTerminal;
pub use self::terminal::size;
use crate::context::Context;
use crate::failure::{Failure, Result, exit_code};
use crate::output::{note, stdout};
use crate::signals::Signals;

/// The keys that leave a program, if no others are given.
pub const DETACH_KEYS: &str = "ctrl-p,ctrl-q";
/// Longest time for which a broken line is opened anew.
pub const RECONNECT_MAX: Duration = Duration::from_secs(45);
/// Pause between two attempts.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(250);
/// Size of reads from stdin.
const INPUT_BYTES: usize = 16 * 1024;

/// Attach this terminal to a background process
#[derive(Debug, Args)]
#[command(after_help = "Shows the current screen of a process with a terminal, or all retained output of a process\n\
    without a terminal, and then follows. Ctrl-P Ctrl-Q detaches, and the process keeps running. Several\n\
    clients can attach to one process. The exit code is the code of the process, or 0 after detaching.\n\
    Reconnects if the connection breaks.\n\n\
    tidebox attach sb-… build")]
pub struct AttachArgs {
    /// Sandbox ID
    id: String,
    /// Process number or name
    process: String,
    /// Do not pass stdin
    #[arg(short, long)]
    no_stdin: bool,
    /// Keys that detach from the process; empty to disable
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS, value_parser = DetachKeys::parse)]
    detach_keys: DetachKeys,
}

/// Attaches, and exits with the exit code of the process.
pub async fn run(context: &Context, args: AttachArgs) -> Result {
    let AttachArgs { id, process, no_stdin, detach_keys } = args;
    let found = context.client.process(&id, &process).await.map_err(|error| Failure::from(error).of_exec())?;
    // Its number: the name may be that of another one when the line is opened anew.
    let process = found.process_id.to_string();
    let session = Session {
        id: &id,
        process: &process,
        from: None,
        has_terminal: found.tty,
        takes_input: !no_stdin,
        detach_keys,
    };
    let mut signals = Signals::listen().map_err(Failure::of_exec)?;
    let end = session.run(&context.client, &mut signals).await.map_err(Failure::of_exec)?;
    match end {
        End::Exited(code) => Ok(ExitCode::from(code)),
        End::Detached => {
            context.output.remark(&format!("detached; reattach with `tidebox attach {id} {process}`"));
            Ok(ExitCode::SUCCESS)
        }
        End::Signalled(code) => Err(Failure::silent(code)),
    }
}

/// End of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The process ended, with this exit code.
    Exited(u8),
    /// The detach keys were typed.
    Detached,
    /// A signal ended this side, with this exit code.
    Signalled(u8),
}

/// A process that has this terminal.
#[derive(Debug)]
pub struct Session<'a> {
    pub id: &'a str,
    pub process: &'a str,
    /// Number of the output to begin with; the screen of the terminal if absent.
    pub from: Option<u64>,
    /// True if the process has a terminal.
    pub has_terminal: bool,
    pub takes_input: bool,
    pub detach_keys: DetachKeys,
}

/// Events of this side.
struct Here {
    /// Input; ends with stdin.
    input: mpsc::Receiver<Bytes>,
    resized: Option<Signal>,
    keys: KeyFilter,
    input_ended: bool,
    /// True once bytes of stdin were sent.
    has_sent: bool,
}

impl Session<'_> {
    /// Lets the person here and the process in the sandbox talk until one of them ends it.
    pub async fn run(self, client: &Client, signals: &mut Signals) -> Result<End> {
        let at_terminal = self.has_terminal && self.takes_input && std::io::stdin().is_terminal();
        let raw = if at_terminal { Some(RawTerminal::begin()?) } else { None };
        let resized = if self.has_terminal { signal(SignalKind::window_change()).ok() } else { None };
        let keys = if at_terminal { self.detach_keys.clone() } else { DetachKeys::default() };
        let (input, _reader) = if self.takes_input { stdin() } else { (mpsc::channel(1).1, JoinSet::new()) };
        let mut here =
            Here { input, resized, keys: KeyFilter::new(keys), input_ended: !self.takes_input, has_sent: false };
        let end = self.talk(client, signals, &mut here).await;
        if let Some(raw) = &raw
            && !matches!(end, Ok(End::Exited(_)))
        {
            raw.calm();
        }
        drop(raw);
        if at_terminal && !matches!(end, Ok(End::Exited(_))) {
            note("");
        }
        end
    }

    async fn talk(&self, client: &Client, signals: &mut Signals, here: &mut Here) -> Result<End> {
        let mut attached = client.attach_process(self.id, self.process, self.from, self.size_here()).await?;
        loop {
            let broken = match self.exchange(&mut attached, signals, here).await {
                Ok(end) => return Ok(end),
                Err(Problem::Line(error)) => error,
                Err(Problem::Here(failure)) => return Err(failure),
            };
            if here.has_sent && !self.has_terminal {
                // A person sees which keys are missing. What a pipe lost would be missing silently.
                let lost = "the connection broke, and it is unknown how much of stdin the process has received";
                return Err(Failure::new("connection_cut", lost));
            }
            let seq = attached.events.seq();
            note("\r\ntidebox: the connection broke; reconnecting\r");
            attached = tokio::select! {
                exit = signals.next() => return Ok(End::Signalled(exit)),
                attached = self.again(client, seq, broken) => attached?,
            };
            if let Some((cols, rows)) = self.size_here() {
                // If the line is broken again, the next event says so.
                let _ = attached.input.resize(cols, rows).await;
            }
        }
    }

    /// Returns the size of the terminal here, if the process has a terminal to resize.
    fn size_here(&self) -> Option<(u16, u16)> {
        if self.has_terminal { size() } else { None }
    }

    /// Opens a broken line anew, where it was.
    async fn again(&self, client: &Client, seq: u64, broken: Error) -> Result<Attached> {
        let began = Instant::now();
        loop {
            match client.attach_process(self.id, self.process, Some(seq), None).await {
                Ok(attached) => return Ok(attached),
                Err(error) if error.is_code("not_found") || error.is_code("conflict") => return Err(error.into()),
                Err(_) if began.elapsed() > RECONNECT_MAX => return Err(broken.into()),
                Err(_) => sleep(RECONNECT_PAUSE).await,
            }
        }
    }

    /// Passes on what both sides say, until the end or until the line breaks.
    async fn exchange(
        &self,
        attached: &mut Attached,
        signals: &mut Signals,
        here: &mut Here,
    ) -> std::result::Result<End, Problem> {
        let Attached { input, events } = attached;
        tokio::select! {
            end = listen(events) => end,
            end = feed(input, here) => end,
            exit = signals.next() => Ok(End::Signalled(exit)),
        }
    }
}

/// Prints what the process says until its end, or until the line breaks.
async fn listen(events: &mut AttachedEvents) -> std::result::Result<End, Problem> {
    while let Some(event) = events.next().await.map_err(of_line)? {
        if let Some(end) = print(event).await.map_err(Problem::Here)? {
            return Ok(end);
        }
    }
    Err(Problem::Here(Failure::new("connection_cut", "the connection ended without the exit code of the process")))
}

/// Passes on what is typed here, and sizes of the terminal, until the detach keys are typed. Output is read
/// meanwhile: a process that waits for its reader takes no input.
async fn feed(input: &mut AttachedInput, here: &mut Here) -> std::result::Result<End, Problem> {
    loop {
        let passed = tokio::select! {
            typed = here.input.recv(), if !here.input_ended => match typed {
                Some(typed) => {
                    let (passed, is_detach) = here.keys.take(&typed);
                    here.has_sent |= !passed.is_empty();
                    let sent = send(input, passed.into()).await;
                    if is_detach {
                        return sent.map(|()| End::Detached).map_err(Problem::Line);
                    }
                    sent
                }
                None => {
                    here.input_ended = true;
                    input.end().await
                }
            },
            () = changed(&mut here.resized) => match size() {
                Some((cols, rows)) => input.resize(cols, rows).await,
                None => Ok(()),
            },
        };
        if passed.is_err() {
            // The process may have ended: what is read from the line says why it takes no more.
            std::future::pending::<()>().await;
        }
    }
}

/// Reason why an exchange stopped.
enum Problem {
    /// The line broke; it can be opened anew.
    Line(Error),
    Here(Failure),
}

/// Tells a broken line from an answer of the server.
fn of_line(error: Error) -> Problem {
    let is_broken = matches!(error, Error::Cut { .. } | Error::Timeout { .. } | Error::Connect { .. } | Error::Io(_))
        || error.is_code("unavailable");
    if is_broken { Problem::Line(error) } else { Problem::Here(error.into()) }
}

async fn send(input: &mut AttachedInput, bytes: Bytes) -> client::Result<()> {
    if bytes.is_empty() { Ok(()) } else { input.write(bytes).await }
}

/// Prints what the process wrote; returns its end.
async fn print(event: ProcessEvent) -> Result<Option<End>> {
    match event {
        ProcessEvent::Screen(bytes) | ProcessEvent::Stdout(bytes) => {
            tokio::task::block_in_place(|| stdout(&bytes))?;
        }
        // A closed stderr must not end the output.
        ProcessEvent::Stderr(bytes) => {
            use std::io::Write as _;
            let _ = tokio::task::block_in_place(|| std::io::stderr().write_all(&bytes));
        }
        ProcessEvent::Gap(bytes) => note(&format!("tidebox: {bytes} bytes of output are no longer kept")),
        ProcessEvent::Exit(exit) => {
            if exit.oom_killed {
                note("tidebox: the box's memory limit killed a process of the command");
            }
            if exit.pids_exhausted {
                note("tidebox: the box reached its limit of processes and threads");
            }
            return Ok(Some(End::Exited(exit_code(exit.code))));
        }
    }
    Ok(None)
}

/// Reads stdin as it comes.
fn stdin() -> (mpsc::Receiver<Bytes>, JoinSet<()>) {
    let (send, receive) = mpsc::channel(4);
    let mut reader = JoinSet::new();
    reader.spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; INPUT_BYTES];
        while let Ok(len) = stdin.read(&mut buffer).await {
            let bytes = Bytes::copy_from_slice(buffer.get(..len).unwrap_or_default());
            if len == 0 || send.send(bytes).await.is_err() {
                return;
            }
        }
    });
    (receive, reader)
}

/// Waits until the terminal has another size.
async fn changed(resized: &mut Option<Signal>) {
    let has_changed = match resized {
        Some(resized) => resized.recv().await.is_some(),
        None => false,
    };
    if !has_changed {
        std::future::pending::<()>().await;
    }
}
