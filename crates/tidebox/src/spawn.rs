//! `tidebox spawn`: a sandbox that stays.

use std::process::ExitCode;

use api::{Sandbox, SpawnRequest};
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{harmless, stderr_is_terminal};
use crate::values::SpawnOptions;

/// Create a sandbox and print its ID
#[derive(Debug, Args)]
#[command(visible_alias = "create")]
pub struct SpawnArgs {
    /// Image to start from; the server's default if omitted
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    #[command(flatten)]
    options: SpawnOptions,
    /// Owner that the box is charged to; --user-id takes precedence
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
    /// Template that provides the defaults
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Snapshot to start from, instead of an image or a template
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
