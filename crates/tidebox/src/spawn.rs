//! `tidebox spawn`: a sandbox that stays.

use std::process::ExitCode;

use api::{Sandbox, SpawnRequest};
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{harmless, stderr_is_terminal};
use crate::values::Resources;

/// Make a sandbox and print its ID
#[derive(Debug, Args)]
pub struct SpawnArgs {
    /// Image; the server's default if left out
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    #[command(flatten)]
    resources: Resources,
    /// Owner that the box counts for; --user-id wins over it
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
    /// Template whose values are the defaults
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
}

pub async fn run(context: &Context, args: SpawnArgs) -> Result {
    let sandbox = context.client.spawn(&request(args.image, &args.resources, args.owner, args.template)?).await?;
    report(context, &sandbox)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the spawn request.
pub fn request(
    image: Option<String>,
    resources: &Resources,
    owner_id: Option<String>,
    template: Option<String>,
) -> Result<SpawnRequest> {
    Ok(SpawnRequest {
        image,
        provider: resources.provider.clone(),
        memory_mb: resources.memory_mb,
        vcpus: resources.vcpus,
        disk_mb: resources.disk_mb,
        entrypoint: resources.entrypoint,
        ttl: resources.ttl.clone(),
        metadata: resources.metadata()?,
        owner_id,
        template,
    })
}

/// Prints the ID alone on stdout, so that a script can keep it; the rest on stderr if that is a
/// terminal.
pub fn report(context: &Context, sandbox: &Sandbox) -> Result<()> {
    context.output.print(sandbox, |sandbox| harmless(&sandbox.id))?;
    if stderr_is_terminal() {
        let Sandbox { id, provider, image, memory_mb, vcpus, expires_at, .. } = sandbox;
        context.output.remark(&harmless(&format!(
            "{image} on {provider}, {memory_mb} MiB, {vcpus} vCPU, until {expires_at}; try: tidebox exec {id} -- uname -a"
        )));
    }
    Ok(())
}
