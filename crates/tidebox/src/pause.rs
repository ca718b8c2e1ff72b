//! `tidebox pause` and `tidebox resume`: the processes of a sandbox stop, and go on.

use std::process::ExitCode;

use api::PauseRequest;
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::get::described;

/// Stop the processes of a sandbox where they are; the next request that needs it has them go on
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The sandbox
    id: String,
    /// Pause it also while requests use it, which then wait
    #[arg(long)]
    force: bool,
    /// Hand memory of it back to the system, also if it is paused already
    #[arg(long, conflicts_with = "to_disk")]
    reclaim: bool,
    /// Write it to disk, so that it takes no memory until it goes on; also if it is paused already
    #[arg(long)]
    to_disk: bool,
}

/// Have the processes of a paused sandbox go on
#[derive(Debug, Args)]
#[command(visible_alias = "unpause")]
pub struct ResumeArgs {
    /// The sandbox
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
