//! `tidebox pause` and `tidebox resume`: the processes of a sandbox stop, and go on.

use std::process::ExitCode;

use api::PauseRequest;
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::get::described;

/// Pause a sandbox; the next request that needs it resumes it
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Sandbox ID
    id: String,
    /// Pause even if requests are using the sandbox; these requests then wait
    #[arg(long)]
    force: bool,
    /// Return memory of the sandbox to the system, also if it is already paused
    #[arg(long, conflicts_with = "to_disk")]
    reclaim: bool,
    /// Write the sandbox to disk, so that it takes no memory until it resumes; also if it is already paused
    #[arg(long)]
    to_disk: bool,
}

/// Resume a paused sandbox
#[derive(Debug, Args)]
#[command(visible_alias = "unpause")]
pub struct ResumeArgs {
    /// Sandbox ID
    id: String,
}

pub async fn pause(context: &Context, args: &PauseArgs) -> Result {
    let request = PauseRequest { force: args.force, reclaim: args.reclaim, to_disk: args.to_disk };
    let sandbox = context.client.pause(&args.id, &request).await?;
    context.output.print(&sandbox, described)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn resume(context: &Context, args: &ResumeArgs) -> Result {
    let sandbox = context.client.resume(&args.id).await?;
    context.output.print(&sandbox, described)?;
    Ok(ExitCode::SUCCESS)
}
