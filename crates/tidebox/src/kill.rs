//! `tidebox kill`: a signal for a background process, or its end.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;

/// Send a signal to a background process
#[derive(Debug, Args)]
#[command(after_help = "Without an option, asks the process to end (SIGTERM); it stays listed with its exit code.\n\n\
    tidebox kill sb-… web\n\
    tidebox kill sb-… web --signal HUP\n\
    tidebox kill sb-… web --remove")]
pub struct KillArgs {
    /// Sandbox ID
    id: String,
    /// Process number or name
    process: String,
    /// Signal to send, such as INT or SIGHUP
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM")]
    signal: String,
    /// End the process and everything it started at once, and delete its entry and output
    #[arg(long, conflicts_with = "signal")]
    remove: bool,
}

pub async fn run(context: &Context, args: &KillArgs) -> Result {
    let KillArgs { id, process, signal, remove } = args;
    if *remove {
        context.client.remove_process(id, process).await?;
    } else {
        context.client.signal_process(id, process, signal).await?;
    }
    Ok(ExitCode::SUCCESS)
}
