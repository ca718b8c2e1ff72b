//! `tidebox logs`: a sandbox's console.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Args;
use client::{Error, ProcessEvent};
use tokio::time::{Instant, sleep};

use crate::attach::{RECONNECT_MAX, RECONNECT_PAUSE};
use crate::context::Context;
use crate::failure::Result;
use crate::output::{harmless, note, stdout};

/// Print the newest console lines of a sandbox, or the output of a background process
#[derive(Debug, Args)]
#[command(after_help = "tidebox logs sb-…\n\
    tidebox logs sb-… --process web -f")]
pub struct LogsArgs {
    /// Sandbox ID
    id: String,
    /// Number of lines to print; the server's default (100) if omitted
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "process")]
    lines: Option<u32>,
    /// Print the output of this process, given by number or name
    #[arg(short, long, value_name = "PROCESS")]
    process: Option<String>,
    /// Follow the output until the process ends
    #[arg(short, long, requires = "process")]
    follow: bool,
    /// Number of bytes of output to skip, for example because you already have them
    #[arg(long, value_name = "SEQ", default_value_t = 0, requires = "process")]
    from: u64,
}

/// Prints the lines, oldest first.
pub async fn run(context: &Context, args: &LogsArgs) -> Result {
    if let Some(process) = &args.process {
        return output(context, args, process).await;
    }
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

/// Prints the output of a process, to the streams that it was written to. A line that breaks is opened
/// anew.
async fn output(context: &Context, args: &LogsArgs, process: &str) -> Result {
    let number = context.client.process(&args.id, process).await?.process_id.to_string();
    let mut from = args.from;
    let mut broken_since = None::<Instant>;
    loop {
        let opened = context.client.process_output(&args.id, &number, from, args.follow).await;
        let error = match opened {
            Ok(mut events) => loop {
                match events.next().await {
                    Ok(Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Screen(bytes))) => stdout(&bytes)?,
                    Ok(Some(ProcessEvent::Stderr(bytes))) => {
                        // A closed stderr must not end the output.
                        let _ = std::io::stderr().write_all(&bytes);
                    }
                    Ok(Some(ProcessEvent::Gap(bytes))) => {
                        note(&format!("tidebox: {bytes} bytes of output are no longer kept"));
                    }
                    Ok(Some(ProcessEvent::Exit(_)) | None) => return Ok(ExitCode::SUCCESS),
                    Err(error) => break error,
                }
                from = events.seq();
                broken_since = None;
            },
            Err(error) => error,
        };
        let is_broken = matches!(error, Error::Cut { .. } | Error::Timeout { .. } | Error::Connect { .. });
        let since = *broken_since.get_or_insert_with(Instant::now);
        if !args.follow || !is_broken || since.elapsed() > RECONNECT_MAX {
            return Err(error.into());
        }
        sleep(RECONNECT_PAUSE).await;
    }
}
