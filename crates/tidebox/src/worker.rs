//! `tidebox worker`: what concerns other servers that run boxes for this one.

use clap::{Args, Subcommand};

use crate::failure::Result;
use crate::output::Output;

mod token;

/// Credentials of other servers that run boxes for this one
#[derive(Debug, Args)]
pub struct WorkerArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Token(token::TokenArgs),
}

/// Does what was asked with workers.
pub fn run(args: &WorkerArgs, output: Output) -> Result {
    match &args.command {
        Command::Token(args) => token::run(args, output),
    }
}
