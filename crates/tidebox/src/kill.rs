//! `tidebox kill`: a signal for a background process, or its end.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;

/// Send a signal to a background process
#[derive(Debug, Args)]
#[command(
    after_help = "Without an option the process is asked to end (SIGTERM), and stays listed with its exit code.\n\n\
    tidebox kill sb-… web\n\
    tidebox kill sb-… web --signal HUP\n\
    tidebox kill sb-… web --remove"
)]
pub struct KillArgs {
    /// The sandbox
    id: String,
    /// The process: its number or its name
    process: String,
    /// Signal to send, such as INT or SIGHUP
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM")]
    signal: String,
    /// End it and all that it started at once, and forget it with its output
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
