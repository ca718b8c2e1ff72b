//! `tidebox config`: the configuration that a server would run with, and its faults.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use server::config::Inputs;

use crate::failure::Result;
use crate::output::Output;

mod lint;
mod show;

/// Show and judge the configuration of a server, without starting it
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Lint(lint::LintArgs),
    Show(show::ShowArgs),
}

/// Layers of the configuration: the same as those of `tidebox serve`.
#[derive(Debug, Args)]
struct Layers {
    /// Configuration file, instead of ./tidebox.yaml and ~/.tidebox/config.yaml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Layers {
    fn inputs(&self) -> Inputs {
        Inputs::from_process(self.config.clone())
    }
}

/// Exit code for a configuration with faults, as `tidebox serve` has it.
const EXIT_FAULT: u8 = 2;

pub fn run(args: &ConfigArgs, output: Output) -> Result {
    match &args.command {
        Command::Lint(args) => lint::run(args, output),
        Command::Show(args) => show::run(args, output),
    }
}
