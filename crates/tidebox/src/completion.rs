//! `tidebox completion`: completion scripts for shells.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use crate::command_line;
use crate::failure::Result;
use crate::output::stdout;

/// Print the completion script of a shell
#[derive(Debug, Args)]
#[command(after_help = "For bash: tidebox completion bash > /etc/bash_completion.d/tidebox")]
pub struct CompletionArgs {
    /// The shell
    shell: Shell,
}

pub fn run(args: &CompletionArgs) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line::command(), "tidebox", &mut script);
    stdout(&script)?;
    Ok(ExitCode::SUCCESS)
}
