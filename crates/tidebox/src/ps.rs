//! `tidebox ps`: the background processes of a sandbox.

use std::process::ExitCode;

use api::{Process, ProcessState};
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::list::{self, Shown};
use crate::output::table;
use crate::values::or_dash;

/// List the background processes of a sandbox; without an ID, list sandboxes
#[derive(Debug, Args)]
pub struct PsArgs {
    /// Sandbox ID
    #[arg(conflicts_with_all = ["all", "quiet"])]
    id: Option<String>,
    #[command(flatten)]
    shown: Shown,
}

pub async fn run(context: &Context, args: &PsArgs) -> Result {
    let Some(id) = &args.id else { return list::print(context, &args.shown).await };
    let processes = context.client.processes(id).await?;
    context.output.print(&processes, |processes| {
        table(
            &["PROCESS", "NAME", "STATE", "TTY", "READERS", "OUTPUT", "STARTED", "COMMAND"],
            processes.iter().map(|process| {
                [
                    process.process_id.to_string(),
                    or_dash(process.name.as_ref()),
                    state(process),
                    if process.tty { "yes" } else { "no" }.to_owned(),
                    process.readers.to_string(),
                    process.last_seq.to_string(),
                    process.started_at.clone(),
                    process.command.clone(),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn state(process: &Process) -> String {
    match (process.state, process.exit_code) {
        (ProcessState::Running, _) => "running".to_owned(),
        (ProcessState::Exited, Some(_)) if process.timed_out => "timed out".to_owned(),
        (ProcessState::Exited, code) => format!("exited {}", or_dash(code.as_ref())),
    }
}
