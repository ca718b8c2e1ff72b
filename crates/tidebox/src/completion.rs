//! `tidebox completion`: completion scripts for shells.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Result;
use crate::output::stdout;

/// Print the completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "For bash: tidebox completion bash > /etc/bash_completion.d/tidebox")]
pub struct CompletionArgs {
    /// Shell to print the script for
    shell: Shell,
}

/// Prints the completion script of `command_line`.
pub fn run(args: &CompletionArgs, mut command_line: Command) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line, "tidebox", &mut script);
    stdout(&script)?;
    Ok(ExitCode::SUCCESS)
}
