//! `tidebox firecracker`: what the provider of virtual machines needs on this host.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Result;
use crate::output::Output;

mod host;
mod kernel;
mod programs;
mod settings;
mod setup;
pub mod wanted;

/// Prepare this host to run boxes in virtual machines
#[derive(Debug, Args)]
pub struct FirecrackerArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Setup(setup::SetupArgs),
}

pub fn run(args: FirecrackerArgs, output: Output) -> Result<ExitCode> {
    match args.command {
        Command::Setup(args) => setup::run(args, output),
    }
}
