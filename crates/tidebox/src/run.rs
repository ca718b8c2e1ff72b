//! `tidebox run`: a box for one command.

use std::process::ExitCode;
use std::time::Duration;

use api::{ExecRequest, Sandbox, SpawnRequest};
use clap::Args;
use tokio::time::timeout;

use crate::command_line::Context;
use crate::exec::{self, CommandArgs};
use crate::failure::{Failure, Result};
use crate::output::note;
use crate::signals::Signals;
use crate::spawn;
use crate::values::Resources;

/// How long an interrupted spawn may take to tell which box must be removed.
/// The server removes it by itself when we hang up, but only if it notices
/// before it has answered.
const SPAWN_GRACE: Duration = Duration::from_secs(10);
/// How long the removal of the box may take before we leave it to its TTL.
const DESTROY_MAX: Duration = Duration::from_secs(30);

/// Run one command in a new box, and remove the box
#[derive(Debug, Args)]
#[command(
    after_help = "The box is removed however the command ends, also on Ctrl-C. The exit code is the command's own;\n\
    124 at the deadline; 125 if there was no box or the command could not be run.\n\n\
    tidebox run host -- python3 -c 'print(1)'\n\
    tidebox run host --memory-mb 256 -c 'dmesg | tail' -n"
)]
pub struct RunArgs {
    /// Image, such as host or python:3.12
    image: String,
    #[command(flatten)]
    resources: Resources,
    /// Whom the box counts for; --user-id wins over it
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
    #[command(flatten)]
    command: CommandArgs,
}

/// Makes the box, runs the command, removes the box, becomes the exit code.
pub async fn run(context: &Context, args: RunArgs) -> Result {
    let spawn = spawn::request(Some(args.image), &args.resources, args.owner, None)?;
    let request = exec::request(context, args.command).await.map_err(Failure::of_exec)?;
    let mut signals = Signals::listen().map_err(Failure::of_exec)?;
    let (sandbox, interrupted) = make(context, &spawn, &mut signals).await.map_err(Failure::of_exec)?;
    let result = match interrupted {
        Some(exit) => Err(Failure::silent(exit)),
        None => perform(context, &sandbox, request, &mut signals).await,
    };
    remove(context, &sandbox, &mut signals).await;
    result.map(ExitCode::from).map_err(Failure::of_exec)
}

/// Makes the box; tells by the second value that we were told to stop meanwhile.
async fn make(context: &Context, request: &SpawnRequest, signals: &mut Signals) -> Result<(Sandbox, Option<u8>)> {
    let mut spawn = std::pin::pin!(context.client.spawn(request));
    let exit = tokio::select! {
        exit = signals.next() => exit,
        sandbox = &mut spawn => return Ok((sandbox?, None)),
    };
    // Told again, or too slow: hang up, and let the server clean up.
    tokio::select! {
        _ = signals.next() => Err(Failure::silent(exit)),
        outcome = timeout(SPAWN_GRACE, spawn) => match outcome {
            Ok(Ok(sandbox)) => Ok((sandbox, Some(exit))),
            Ok(Err(_)) | Err(_) => Err(Failure::silent(exit)),
        },
    }
}

async fn perform(context: &Context, sandbox: &Sandbox, request: ExecRequest, signals: &mut Signals) -> Result<u8> {
    tokio::select! {
        exit = signals.next() => Err(Failure::silent(exit)),
        result = exec::perform(context, &sandbox.id, request) => result,
    }
}

/// Removes the box. That it stays does not change how the command ended, so it
/// is told and no more.
async fn remove(context: &Context, sandbox: &Sandbox, signals: &mut Signals) {
    let reason = tokio::select! {
        _ = signals.next() => "interrupted".to_owned(),
        outcome = timeout(DESTROY_MAX, context.client.destroy(&sandbox.id)) => match outcome {
            Ok(Ok(_)) => return,
            Ok(Err(error)) if error.is_code("not_found") => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} seconds", DESTROY_MAX.as_secs()),
        },
    };
    let Sandbox { id, expires_at, .. } = sandbox;
    note(&crate::output::harmless(&format!(
        "tidebox: box {id} is not removed ({reason}); it goes by itself at {expires_at}, or by `tidebox destroy {id}`"
    )));
}
