//! `tidebox exec`: running a command in a sandbox, as if it ran here.

mod stdin;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use api::{ExecMode, ExecRequest, ExecResult, ProcessStarted, StringMap};
use clap::Args;
use client::{Client, ExecEvent, ExecStream, Exit};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::attach::{self, DETACH_KEYS, DetachKeys, End, Session};
use crate::code::{self, CodeArgs};
use crate::context::Context;
use crate::failure::{Failure, Result, exit_code};
use crate::output::{Format, note};
use crate::signals::Signals;
use crate::values::{pair, string_map};

/// Time without a client after which a process that has no name ends.
const LINGER: &str = "1m";
/// Line that starts the best shell of the sandbox as a login shell.
pub const SHELL: &str = "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi";

/// Run a command in a sandbox
#[derive(Debug, Args)]
#[command(after_help = "The words after the ID run unchanged, without a shell; -c passes a line to /bin/sh instead.\n\
    Options of exec come before the first word of the command; -- may separate them.\n\
    Output is streamed, byte by byte. The exit code is the code of the command; 124 at the deadline; 125\n\
    if the command could not be run at all. Ctrl-C ends the command.\n\
    Stdin is read only with -i. With -it, the command gets this terminal and every key; Ctrl-P Ctrl-Q\n\
    detaches, and exec reconnects if the connection breaks. With --name, the command keeps running when\n\
    exec ends, and `tidebox attach` returns to it.\n\n\
    tidebox exec sb-… python3 -c 'print(1)'\n\
    tidebox exec sb-… -c 'ls | wc -l'\n\
    tidebox exec sb-… --code 'x = 6 * 7; x'    (x is kept for the next --code)\n\
    tar c src | tidebox exec -i sb-… tar x\n\
    tidebox exec -it sb-… vim notes.txt\n\
    tidebox exec -d --name web sb-… python3 -m http.server")]
pub struct ExecArgs {
    /// Sandbox ID
    id: String,
    #[command(flatten)]
    command: CommandArgs,
    #[command(flatten)]
    code: CodeArgs,
    #[command(flatten)]
    interaction: InteractionArgs,
}

/// Options for a person's part in the command.
#[derive(Debug, Args)]
pub struct InteractionArgs {
    /// Stream stdin to the command; without this option, stdin is not read
    #[arg(short, long, conflicts_with = "no_stdin")]
    interactive: bool,
    /// Allocate a terminal for the command; with -i, use this terminal. Without a command, run a shell
    #[arg(short, long)]
    tty: bool,
    /// Run the command in the background and print its process number
    #[arg(short, long, conflicts_with_all = ["interactive", "code"])]
    detach: bool,
    /// Name the process, so that it keeps running when exec ends; attach if the name is already running
    #[arg(long, value_name = "NAME", conflicts_with = "code")]
    name: Option<String>,
    /// Keys that detach from the process; empty to disable
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS, value_parser = DetachKeys::parse)]
    detach_keys: DetachKeys,
}

/// Part of a person in a command that is not just run.
#[derive(Debug)]
pub struct Interaction {
    pub interactive: bool,
    pub tty: bool,
    pub detach: bool,
    pub name: Option<String>,
    pub detach_keys: DetachKeys,
}

impl InteractionArgs {
    /// Returns what is asked for; `None` for a command that is just run. In JSON that is also a command
    /// with stdin alone, because its output is part of one answer.
    fn asked(self, format: Format) -> Option<Interaction> {
        let InteractionArgs { interactive, tty, detach, name, detach_keys } = self;
        let streams = interactive && format == Format::Table;
        let is_asked = streams || tty || detach || name.is_some();
        is_asked.then_some(Interaction { interactive, tty, detach, name, detach_keys })
    }
}

/// Command to run, with its environment, user and deadline.
#[derive(Debug, Args)]
// What is so without -i, for scripts that say it.
#[command(arg = clap::Arg::new("no_stdin").short('n').long("no-stdin").hide(true).action(clap::ArgAction::SetTrue))]
pub struct CommandArgs {
    /// Run this line with /bin/sh
    #[arg(short = 'c', long = "command", value_name = "LINE", conflicts_with = "words")]
    line: Option<String>,
    /// Set an environment variable; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Set an environment variable to the value of a secret for commands; may be repeated
    #[arg(long, value_name = "KEY=SECRET", value_parser = pair)]
    env_secret: Vec<(String, String)>,
    /// Working directory, as an absolute path
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// User to run as: name, uid, name:group or uid:gid
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Deadline, such as 30s; the server's default if omitted
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Program to run and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    words: Vec<String>,
}

/// Runs the command and exits with its exit code.
pub async fn run(context: &Context, args: ExecArgs) -> Result {
    let ExecArgs { id, command, code, interaction } = args;
    let (env, timeout) = command.env_and_timeout()?;
    if let Some(code) = code.code(env, timeout).await.map_err(Failure::of_exec)? {
        let mut signals = Signals::listen().map_err(Failure::of_exec)?;
        return tokio::select! {
            // Returning closes the connection, which interrupts the code.
            exit = signals.next() => Err(Failure::silent(exit)),
            result = code::perform(context, &id, code) => result.map(ExitCode::from).map_err(Failure::of_exec),
        };
    }
    let reads_stdin = interaction.interactive;
    let described = command.described(interaction.tty, "ID")?;
    if let Some(interaction) = interaction.asked(context.output.format) {
        return interact(context, &id, described, interaction).await;
    }
    let request = with_stdin(context, described, reads_stdin).await.map_err(Failure::of_exec)?;
    let mut signals = Signals::listen().map_err(Failure::of_exec)?;
    tokio::select! {
        // Returning closes the connection, which ends the command.
        exit = signals.next() => Err(Failure::silent(exit)),
        result = perform(context, &id, request) => result.map(ExitCode::from).map_err(Failure::of_exec),
    }
}

/// Adds stdin, read to its end within the deadline of the command, if it is asked for.
pub async fn with_stdin(context: &Context, request: ExecRequest, reads_stdin: bool) -> Result<ExecRequest> {
    if !reads_stdin {
        return Ok(request);
    }
    let (text, stdin_encoding) = stdin::read(context.output, request.timeout.as_deref()).await?;
    Ok(ExecRequest { stdin: Some(text), stdin_encoding, ..request })
}

impl CommandArgs {
    /// Returns the variables and the deadline, which code has too.
    pub fn env_and_timeout(&self) -> Result<(StringMap, Option<String>)> {
        Ok((string_map("--env", &self.env)?, self.timeout.clone()))
    }

    /// Builds the request without stdin. Without a command it is a shell if there is a terminal for it; else
    /// the failure says that the command comes after `place`.
    pub fn described(self, tty: bool, place: &str) -> Result<ExecRequest> {
        let env = string_map("--env", &self.env)?;
        let env_secret = string_map("--env-secret", &self.env_secret)?;
        let mut words = self.words.into_iter();
        let (command, args, mode) = match (self.line, words.next()) {
            (Some(line), _) => (line, Vec::new(), ExecMode::Shell),
            (None, Some(program)) => (program, words.collect(), ExecMode::Argv),
            (None, None) if tty => (SHELL.to_owned(), Vec::new(), ExecMode::Shell),
            (None, None) => {
                return Err(Failure::usage(format!(
                    "no command given; write it after {place}, such as `ls -l`, or pass a shell line with -c or code \
                     with --code; -it without a command opens a shell"
                )));
            }
        };
        Ok(ExecRequest {
            command,
            args,
            mode,
            env,
            env_secret,
            workdir: self.workdir,
            user: self.user,
            timeout: self.timeout,
            ..ExecRequest::default()
        })
    }
}

/// Runs the command in the background of the sandbox, and attaches to it unless that is not wanted.
pub async fn interact(context: &Context, id: &str, request: ExecRequest, asked: Interaction) -> Result {
    converse(context, id, request, asked).await.map(ExitCode::from).map_err(Failure::of_exec)
}

/// Does what [`interact`] does, and returns the exit code.
pub async fn converse(context: &Context, id: &str, mut request: ExecRequest, asked: Interaction) -> Result<u8> {
    let Interaction { interactive, tty, detach, name, detach_keys } = asked;
    if tty && interactive && !std::io::stdin().is_terminal() {
        return Err(Failure::usage("stdin is not a terminal; omit -t"));
    }
    if tty {
        // Programs draw for the terminal that shows them.
        if let Some(term) = std::env::var("TERM").ok().filter(|term| !term.is_empty()) {
            request.env.0.entry("TERM".to_owned()).or_insert(term);
        }
        (request.cols, request.rows) = attach::size().unzip();
    }
    request.tty = tty;
    request.stdin_open = interactive;
    request.name = name.clone();
    if name.is_none() && !detach {
        request.linger = Some(LINGER.to_owned());
    }
    // Its output then waits for this reader, as that of a pipe does; that of a terminal is for the eye.
    request.resumable = interactive && !tty && name.is_none();
    let client = &context.client;
    let mut signals = Signals::listen()?;
    // A new process has no screen yet: its output alone leaves what the terminal here shows.
    let (process, has_terminal, from) = match client.start_process(id, request).await {
        Ok(started) => (started.process_id, tty, Some(0)),
        Err(error) if error.is_code("conflict") && !detach && name.is_some() => {
            let found = client.process(id, name.as_deref().unwrap_or_default()).await?;
            (found.process_id, found.tty, None)
        }
        Err(error) => return Err(error.into()),
    };
    if detach {
        let started = ProcessStarted { process_id: process, name };
        context.output.print(&started, |started| started.process_id.to_string())?;
        return Ok(0);
    }
    let process = process.to_string();
    let session = Session { id, process: &process, from, has_terminal, takes_input: interactive, detach_keys };
    let end = session.run(client, &mut signals).await;
    if name.is_none() && !matches!(end, Ok(End::Detached)) {
        // Else it would be listed for as long as it lingers.
        let _ = client.remove_process(id, &process).await;
    }
    match end? {
        End::Exited(code) => Ok(code),
        End::Detached => {
            let kept = if name.is_some() { "" } else { " within a minute" };
            context.output.remark(&format!("detached; reattach with `tidebox attach {id} {process}`{kept}"));
            Ok(0)
        }
        End::Signalled(code) => Err(Failure::silent(code)),
    }
}

/// Runs the command, prints its output, and returns its exit code.
pub async fn perform(context: &Context, id: &str, request: ExecRequest) -> Result<u8> {
    match context.output.format {
        Format::Table => stream(&context.client, id, request).await,
        Format::Json => {
            let result = context.client.exec(id, request).await.map_err(explained)?;
            context.output.print(&result, |_: &ExecResult| String::new())?;
            Ok(exit_code(result.exit_code))
        }
    }
}

async fn stream(client: &Client, id: &str, request: ExecRequest) -> Result<u8> {
    let events = client.exec_stream(id, request).await.map_err(explained)?;
    let exit = pass_on(events, &mut tokio::io::stdout(), &mut tokio::io::stderr()).await?;
    if exit.oom_killed {
        note("tidebox: the box's memory limit killed a process of the command; raise it with --memory-mb");
    }
    if exit.pids_exhausted {
        note("tidebox: the box reached its limit of processes and threads; raise it with --pids");
    }
    Ok(exit_code(exit.code))
}

async fn pass_on<O, E>(mut events: ExecStream, stdout: &mut O, stderr: &mut E) -> Result<Exit>
where
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    while let Some(event) = events.next().await? {
        // Flushed each time: tokio's own buffer would keep what was written last.
        match event {
            ExecEvent::Stdout(bytes) => {
                let written = async { stdout.write_all(&bytes).await.and(stdout.flush().await) }.await;
                written.map_err(|error| Failure::stdout(&error))?;
            }
            // A closed stderr must not end the command's stdout.
            ExecEvent::Stderr(bytes) => {
                let _ = async { stderr.write_all(&bytes).await.and(stderr.flush().await) }.await;
            }
            ExecEvent::Exit(exit) => return Ok(exit),
        }
    }
    Err(Failure::new("connection_cut", "the connection ended without the exit code of the command"))
}

/// Explains the size limit, which the command or its stdin has exceeded.
fn explained(error: client::Error) -> Failure {
    match error {
        client::Error::TooLarge { .. } => stdin::too_large(),
        error @ (client::Error::Argument { .. }
        | client::Error::Connect { .. }
        | client::Error::Timeout { .. }
        | client::Error::Api { .. }
        | client::Error::Protocol { .. }
        | client::Error::Cut { .. }
        | client::Error::Io(_)) => error.into(),
    }
}
