//! `tidebox spawn`: a sandbox that stays.

use std::process::ExitCode;

use api::{Sandbox, SpawnRequest};
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{harmless, stderr_is_terminal};
use crate::values::SpawnOptions;

/// Make a sandbox and print its ID
#[derive(Debug, Args)]
#[command(visible_alias = "create")]
pub struct SpawnArgs {
    /// Image; the server's default if left out
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    #[command(flatten)]
    options: SpawnOptions,
    /// Owner that the box counts for; --user-id wins over it
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
    /// Template whose values are the defaults
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Snapshot to begin with, instead of an image or a template
    #[arg(long, value_name = "ID", conflicts_with_all = ["image", "template"])]
    snapshot: Option<String>,
}

pub async fn run(context: &Context, args: SpawnArgs) -> Result {
    let SpawnArgs { image, options, owner: owner_id, template, snapshot } = args;
    let request = SpawnRequest { owner_id, template, snapshot, ..options.with_image(image)?.into() };
    report(context, &context.client.spawn(&request).await?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the ID alone on stdout, so that a script can keep it; the rest on stderr if that is a
/// terminal.
pub fn report(context: &Context, sandbox: &Sandbox) -> Result<()> {
    context.output.print(sandbox, |sandbox| harmless(&sandbox.id))?;
    if stderr_is_terminal() {
        let Sandbox { id, provider, image, memory_mb, vcpus, expires_at, .. } = sandbox;
        context.output.remark(&harmless(&format!(
            "{image} on {provider}, {memory_mb} MiB, {vcpus} vCPU, until {expires_at}; try: tidebox exec {id} uname -a"
        )));
    }
    Ok(())
}
