//! `tidebox config`: what a server would run with, and whether it should.

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

/// Which layers are read: the same as by `tidebox serve`.
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

/// The configuration has a fault, as `tidebox serve` would say.
const EXIT_FAULT: u8 = 2;

/// Does what was asked with the configuration.
pub fn run(args: &ConfigArgs, output: Output) -> Result {
    match &args.command {
        Command::Lint(args) => lint::run(args, output),
        Command::Show(args) => show::run(args, output),
    }
}
