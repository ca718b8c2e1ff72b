//! `tidebox config`: the configuration that a server would run with, and its faults.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Result;
use crate::output::Output;

pub mod layers;
mod lint;
mod show;

/// Show and check the configuration of a server, without starting the server
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Lint(lint::LintArgs),
    Show(show::ShowArgs),
    /// Print the JSON Schema of a configuration file, for editors
    Schema,
}

pub fn run(args: &ConfigArgs, output: Output) -> Result {
    match &args.command {
        Command::Lint(args) => lint::run(args, output),
        Command::Show(args) => show::run(args, output),
        Command::Schema => {
            output.print(&server::config::schema(), |schema| format!("{schema:#}"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
