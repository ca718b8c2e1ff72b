//! `tidebox run`: a box for one command, or for some code.

use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::time::Duration;

use api::{ExecRequest, Sandbox, SpawnRequest};
use clap::Args;
use client::Filter;
use tokio::time::timeout;

use crate::attach::DetachKeys;
use crate::code::{self, Code, CodeArgs};
use crate::context::Context;
use crate::exec::{self, CommandArgs, Interaction};
use crate::failure::{Failure, Result};
use crate::output::{Format, note};
use crate::signals::Signals;
use crate::values::SpawnOptions;

/// The longest wait for an interrupted spawn to return the box that must be removed. When the
/// client disconnects the server removes the box by itself, but only if it notices before it has
/// answered.
const SPAWN_GRACE: Duration = Duration::from_secs(10);
/// Metadata key by which a run finds the row of its own spawn, if that fails.
const RUN_LABEL: &str = "tidebox.run";
/// The longest wait for the removal of the box; after it the box is left to its TTL.
const DESTROY_MAX: Duration = Duration::from_secs(30);

/// Run a command or code in a new box, then remove the box
#[derive(Debug, Args)]
#[command(
    after_help = "The box is always removed when the command ends, also on Ctrl-C. The exit code is the code of the\n\
    command; 124 at the deadline; 125 if there was no box or the command could not be run.\n\
    Options of run come before the first word of the command; -- may separate them. Stdin is read only\n\
    with -i.\n\n\
    With --code, run prints the output of the code and the value of its last expression, and exits with\n\
    1 if the code fails. Images appear in terminals with the protocol of kitty, iTerm2 or sixel, which\n\
    TIDEBOX_IMAGES may name; in others they are saved here as tidebox-N.png. If stdout is not a\n\
    terminal, only --images saves them.\n\n\
    tidebox run host python3 -c 'print(1)'\n\
    tidebox run host --code 'import math; math.pi'\n\
    tidebox run --memory-mb 256 host -c 'dmesg | tail'\n\
    tidebox run -it host"
)]
// A box is removed in any case; fingers add it.
#[command(arg = clap::Arg::new("rm").long("rm").hide(true).action(clap::ArgAction::SetTrue))]
pub struct RunArgs {
    /// Image, such as host or python:3.12
    image: String,
    #[command(flatten)]
    options: SpawnOptions,
    /// Owner that the box is charged to; --user-id takes precedence
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
    #[command(flatten)]
    command: CommandArgs,
    #[command(flatten)]
    code: CodeArgs,
    /// Stream stdin to the command; without this option, stdin is not read
    #[arg(short, long, conflicts_with = "no_stdin")]
    interactive: bool,
    /// Allocate a terminal for the command; with -i, use this terminal. Without a command, run a shell
    #[arg(short, long)]
    tty: bool,
}

/// Work of the box.
enum Work {
    /// A command that is just run.
    Command(ExecRequest),
    /// A command that a person or a stream of stdin takes part in.
    Conversation(ExecRequest, Interaction),
    Code(Code),
}

/// Makes the box, runs the command, removes the box, and exits with the command's code.
pub async fn run(context: &Context, args: RunArgs) -> Result {
    let options = args.options.with_image(Some(args.image))?;
    let mut spawn = SpawnRequest { owner_id: args.owner, ..options.into() };
    let run = format!("{:016x}", RandomState::new().hash_one(()));
    spawn.metadata.get_or_insert_default().0.insert(RUN_LABEL.to_owned(), run.clone());
    let (env, deadline) = args.command.env_and_timeout()?;
    let work = match args.code.code(env, deadline).await.map_err(Failure::of_exec)? {
        Some(code) => Work::Code(code),
        None => command(context, args.command, args.interactive, args.tty).await?,
    };
    let mut signals = Signals::listen().map_err(Failure::of_exec)?;
    let (sandbox, interrupted) = match make(context, &spawn, &mut signals).await {
        Ok(made) => made,
        Err(failure) => {
            // Without success the row says what this command says now.
            let _ = timeout(DESTROY_MAX, forget(context, &run)).await;
            return Err(Failure::of_exec(failure));
        }
    };
    let result = match interrupted {
        Some(exit) => Err(Failure::silent(exit)),
        None => perform(context, &sandbox, work, &mut signals).await,
    };
    remove(context, &sandbox, &mut signals).await;
    result.map(ExitCode::from).map_err(Failure::of_exec)
}

async fn command(context: &Context, command: CommandArgs, interactive: bool, tty: bool) -> Result<Work> {
    let request = command.described(tty, "IMAGE")?;
    if tty || (interactive && context.output.format == Format::Table) {
        // The box ends with the command, so there is nothing to come back to.
        let asked = Interaction { interactive, tty, detach: false, name: None, detach_keys: DetachKeys::default() };
        return Ok(Work::Conversation(request, asked));
    }
    exec::with_stdin(context, request, interactive).await.map(Work::Command).map_err(Failure::of_exec)
}

/// Makes the box; the second value is the exit code if a signal arrived meanwhile.
async fn make(context: &Context, request: &SpawnRequest, signals: &mut Signals) -> Result<(Sandbox, Option<u8>)> {
    let mut spawn = std::pin::pin!(context.client.spawn(request));
    let exit = tokio::select! {
        exit = signals.next() => exit,
        sandbox = &mut spawn => return Ok((sandbox?, None)),
    };
    // A second signal, or too slow: disconnect, and let the server clean up.
    tokio::select! {
        _ = signals.next() => Err(Failure::silent(exit)),
        outcome = timeout(SPAWN_GRACE, spawn) => match outcome {
            Ok(Ok(sandbox)) => Ok((sandbox, Some(exit))),
            Ok(Err(_)) | Err(_) => Err(Failure::silent(exit)),
        },
    }
}

/// Removes the row of a spawn that failed.
async fn forget(context: &Context, run: &str) {
    let filter = Filter { metadata: &[(RUN_LABEL, run)], state: Some("failed"), ..Filter::default() };
    let Ok(page) = context.client.list_page(&filter).await else { return };
    for sandbox in page.sandboxes {
        // Servers that do not know the filter answer with every sandbox.
        if sandbox.metadata.0.get(RUN_LABEL).is_some_and(|label| label == run) {
            let _ = context.client.destroy(&sandbox.id).await;
        }
    }
}

async fn perform(context: &Context, sandbox: &Sandbox, work: Work, signals: &mut Signals) -> Result<u8> {
    let id = &sandbox.id;
    match work {
        // It handles the signals itself.
        Work::Conversation(request, asked) => exec::converse(context, id, request, asked).await,
        Work::Command(request) => until_signal(exec::perform(context, id, request), signals).await,
        Work::Code(code) => until_signal(code::perform(context, id, code), signals).await,
    }
}

async fn until_signal(work: impl Future<Output = Result<u8>>, signals: &mut Signals) -> Result<u8> {
    tokio::select! {
        exit = signals.next() => Err(Failure::silent(exit)),
        result = work => result,
    }
}

/// Removes the box. A failure is only noted, since it does not change how the command ended.
async fn remove(context: &Context, sandbox: &Sandbox, signals: &mut Signals) {
    let reason = tokio::select! {
        _ = signals.next() => "interrupted".to_owned(),
        outcome = timeout(DESTROY_MAX, context.client.destroy(&sandbox.id)) => match outcome {
            Ok(Ok(_)) => return,
            Ok(Err(error)) if error.is_code("not_found") => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {} seconds", DESTROY_MAX.as_secs()),
        },
    };
    let Sandbox { id, expires_at, .. } = sandbox;
    note(&crate::output::harmless(&format!(
        "tidebox: box {id} was not removed ({reason}); it expires at {expires_at}, or remove it with `tidebox destroy \
         {id}`"
    )));
}
