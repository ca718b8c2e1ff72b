//! `tidebox worker`: a server that runs boxes for a control plane, and the tokens of such servers.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::failure::Result;
use crate::output::Output;
use crate::serve;

mod token;

/// Run a server as a worker of a control plane
///
/// A worker is an ordinary server with its own data and configuration. It reports to the control plane what it can
/// run. The control plane connects to the workers.ID.url of its configuration.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct WorkerArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Control plane to work for; `worker.control_plane` if omitted
    #[arg(long, value_name = "URL")]
    control_plane: Option<String>,
    /// Name of this worker on the control plane; worker.id if omitted, else the host name
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Configuration file, instead of ./tidebox.yaml, ~/.tidebox/config.yaml and /etc/tidebox/config.yaml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Token(token::TokenArgs),
}

pub fn run(args: &WorkerArgs, output: Output) -> Result {
    if let Some(Command::Token(args)) = &args.command {
        return token::run(args, output);
    }
    serve::run_as(args.config.clone(), serve::Role { as_worker: true, ..serve::Role::default() }, |config| {
        if let Some(url) = &args.control_plane {
            config.worker.control_plane.clone_from(url);
        }
        if args.id.is_some() {
            config.worker.id.clone_from(&args.id);
        }
    })
}
