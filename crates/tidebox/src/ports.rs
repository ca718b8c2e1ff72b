//! `tidebox ports`: the ports that listen in a sandbox.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::table;
use crate::values::or_dash;

/// List the listening TCP ports of a sandbox
#[derive(Debug, Args)]
pub struct PortsArgs {
    /// Sandbox ID
    id: String,
}

pub async fn run(context: &Context, args: &PortsArgs) -> Result {
    let ports = context.client.ports(&args.id).await?;
    context.output.print(&ports, |ports| {
        table(
            &["PORT", "ADDRESS", "PID", "PROCESS"],
            ports.iter().map(|port| {
                [
                    port.port.to_string(),
                    port.address.clone(),
                    or_dash(port.pid.as_ref()),
                    or_dash(port.process.as_ref()),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
