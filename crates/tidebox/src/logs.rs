//! `tidebox logs`: a sandbox's console.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::harmless;

/// Print the newest lines of a sandbox's console
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The sandbox
    id: String,
    /// Number of lines; the server's default (100) if left out
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<u32>,
}

/// Prints the lines, oldest first.
pub async fn run(context: &Context, args: &LogsArgs) -> Result {
    let lines = context.client.logs(&args.id, args.lines).await?;
    let to_terminal = std::io::stdout().is_terminal();
    context.output.print(&lines, |lines| {
        lines.iter().fold(String::new(), |mut text, line| {
            // A file gets the box's exact output; a terminal gets it without control characters.
            text.push_str(&if to_terminal { harmless(line) } else { line.clone() });
            text.push('\n');
            text
        })
    })?;
    Ok(ExitCode::SUCCESS)
}
