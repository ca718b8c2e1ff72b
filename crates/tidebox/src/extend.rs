//! `tidebox extend`: a new lifetime for a sandbox.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;

/// Set a new lifetime for a sandbox, counted from now
#[derive(Debug, Args)]
pub struct ExtendArgs {
    /// Sandbox ID
    id: String,
    /// Lifetime from now, such as 30m; may be shorter than before
    ttl: String,
}

pub async fn run(context: &Context, args: &ExtendArgs) -> Result {
    let sandbox = context.client.extend(&args.id, &args.ttl).await?;
    context.output.print(&sandbox, |sandbox| {
        crate::output::harmless(&format!("{} lives until {}", sandbox.id, sandbox.expires_at))
    })?;
    Ok(ExitCode::SUCCESS)
}
