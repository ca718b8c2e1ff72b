//! `tidebox list`: the sandboxes of the server.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::table;
use crate::values::{labels, or_dash};

/// List the sandboxes, newest first
#[derive(Debug, Args)]
#[command(visible_alias = "ls")]
pub struct ListArgs {}

pub async fn run(context: &Context, _args: &ListArgs) -> Result {
    let sandboxes = context.client.list().await?;
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
