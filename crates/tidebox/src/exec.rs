//! `tidebox exec`: running a command in a sandbox, as if it ran here.

mod stdin;

use std::process::ExitCode;

use api::{ExecMode, ExecRequest, ExecResult, TextEncoding};
use clap::Args;
use client::{Client, ExecEvent, ExecStream, Exit};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::context::Context;
use crate::failure::{EXEC_FAILED, Failure, Result};
use crate::output::{Format, note};
use crate::signals::Signals;
use crate::values::{pair, string_map};

/// Run a command in a sandbox
#[derive(Debug, Args)]
#[command(
    after_help = "The words after -- are run as they are, without a shell; -c gives a line to /bin/sh instead.\n\
    Output arrives as it is written, byte by byte. The exit code is the command's own; 124 at the\n\
    deadline; 125 if the command could not be run at all. Ctrl-C ends the command.\n\n\
    tidebox exec sb-… -- python3 -c 'print(1)'\n\
    tidebox exec sb-… -c 'ls | wc -l'\n\
    tidebox exec sb-… -- sh < script.sh"
)]
pub struct ExecArgs {
    /// The sandbox
    id: String,
    #[command(flatten)]
    command: CommandArgs,
}

/// Command to run, with its environment, user, deadline and stdin.
#[derive(Debug, Args)]
pub struct CommandArgs {
    /// Run this line by /bin/sh
    #[arg(
        short = 'c',
        long = "command",
        value_name = "LINE",
        required_unless_present = "words",
        conflicts_with = "words"
    )]
    line: Option<String>,
    /// Set a variable of its environment; may be given several times
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Set a variable to the value of a secret that is for commands; may be given several times
    #[arg(long, value_name = "KEY=SECRET", value_parser = pair)]
    env_secret: Vec<(String, String)>,
    /// Absolute directory to start in
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// User to run as: name, uid, name:group or uid:gid
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Deadline, such as 30s; the server's default if left out
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Pass no stdin; else it is read to its end first, unless it is a terminal
    #[arg(short, long)]
    no_stdin: bool,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    words: Vec<String>,
}

/// Runs the command and exits with its exit code.
pub async fn run(context: &Context, args: ExecArgs) -> Result {
    let request = request(context, args.command).await.map_err(Failure::of_exec)?;
    let mut signals = Signals::listen().map_err(Failure::of_exec)?;
    tokio::select! {
        // Returning closes the connection, which ends the command.
        exit = signals.next() => Err(Failure::silent(exit)),
        result = perform(context, &args.id, request) => result.map(ExitCode::from).map_err(Failure::of_exec),
    }
}

/// Builds the request, reading stdin to its end.
pub async fn request(context: &Context, args: CommandArgs) -> Result<ExecRequest> {
    let env = string_map("--env", &args.env)?;
    let env_secret = string_map("--env-secret", &args.env_secret)?;
    let (command, arguments, mode) = match args.line {
        Some(line) => (line, Vec::new(), ExecMode::Shell),
        None => {
            let mut words = args.words.into_iter();
            let program = words.next().ok_or_else(|| Failure::usage("no command; write it after --"))?;
            (program, words.collect(), ExecMode::Argv)
        }
    };
    let stdin = if args.no_stdin { None } else { stdin::read(context.output).await? };
    let (stdin, stdin_encoding) = match stdin {
        Some((text, encoding)) => (Some(text), encoding),
        None => (None, TextEncoding::Utf8),
    };
    let (workdir, user, timeout) = (args.workdir, args.user, args.timeout);
    Ok(ExecRequest {
        command,
        args: arguments,
        mode,
        env,
        env_secret,
        workdir,
        user,
        timeout,
        stdin,
        stdin_encoding,
        ..ExecRequest::default()
    })
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
        note("tidebox: the memory limit of the box ended a process of the command; give the box more with --memory-mb");
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
    Err(Failure::new("connection_cut", "the command's exit code did not arrive"))
}

/// Explains the size limit, which stdin has exceeded.
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

/// Returns the command's own exit code, or [`EXEC_FAILED`] for a code that no process of this
/// system could have.
fn exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(EXEC_FAILED)
}

#[cfg(test)]
mod test {
    use super::exit_code;

    #[test]
    fn the_commands_exit_code_passes_through_unchanged() {
        for code in 0..=255 {
            assert_eq!(i32::from(exit_code(code)), code);
        }
        for code in [-1, 256, i32::MAX, i32::MIN] {
            assert_eq!(exit_code(code), 125, "{code}");
        }
    }
}
