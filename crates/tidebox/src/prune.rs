//! `tidebox prune`: removal of expired sandboxes.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;

/// Remove expired sandboxes
#[derive(Debug, Args)]
pub struct PruneArgs {}

pub async fn run(context: &Context, _args: &PruneArgs) -> Result {
    let answer = context.client.prune().await?;
    context.output.print(&answer, |answer| match answer.pruned {
        0 => "no sandbox had expired".to_owned(),
        1 => "1 expired sandbox removed".to_owned(),
        count => format!("{count} expired sandboxes removed"),
    })?;
    Ok(ExitCode::SUCCESS)
}
