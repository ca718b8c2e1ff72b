//! `tidebox list`: the sandboxes of the server.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{Format, harmless, stdout, table};
use crate::values::{labels, or_dash};

/// List sandboxes, newest first
#[derive(Debug, Args)]
#[command(visible_alias = "ls")]
pub struct ListArgs {
    #[command(flatten)]
    shown: Shown,
}

/// Choice of the sandboxes to list, and of what is said of them.
#[derive(Debug, Args)]
pub struct Shown {
    /// Include failed sandboxes
    #[arg(short, long)]
    all: bool,
    /// Print only IDs
    #[arg(short, long)]
    quiet: bool,
}

pub async fn run(context: &Context, args: &ListArgs) -> Result {
    print(context, &args.shown).await
}

/// Prints the sandboxes; without `all` those that failed are left out, since they only say why.
pub async fn print(context: &Context, shown: &Shown) -> Result {
    let mut sandboxes = context.client.list().await?;
    if !shown.all {
        sandboxes.retain(|sandbox| sandbox.state != "failed");
    }
    if shown.quiet && context.output.format == Format::Table {
        let ids: String = sandboxes.iter().map(|sandbox| format!("{}\n", harmless(&sandbox.id))).collect();
        stdout(ids.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    context.output.print(&sandboxes, |sandboxes| {
        let header = ["ID", "STATE", "PROVIDER", "IMAGE", "MIB", "VCPUS", "OWNER", "EXPIRES", "METADATA"];
        table(
            &header,
            sandboxes.iter().map(|sandbox| {
                [
                    sandbox.id.clone(),
                    sandbox.state.clone(),
                    sandbox.provider.clone(),
                    sandbox.image.clone(),
                    sandbox.memory_mb.to_string(),
                    sandbox.vcpus.to_string(),
                    or_dash(sandbox.owner_id.as_ref()),
                    sandbox.expires_at.clone(),
                    labels(&sandbox.metadata),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
