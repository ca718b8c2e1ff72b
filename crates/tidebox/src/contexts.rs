//! `tidebox contexts`: the interpreters of a sandbox that keep their state.

use std::process::ExitCode;

use api::ContextState;
use clap::Args;

use crate::code::language_name;
use crate::context::Context;
use crate::failure::Result;
use crate::output::table;

/// List the code contexts of a sandbox
#[derive(Debug, Args)]
#[command(
    after_help = "A context is an interpreter that keeps its state between runs of code. The default context of a\n\
    language has the name of the language; `exec --code` and `repl` make it at their first use."
)]
pub struct ContextsArgs {
    /// Sandbox ID
    id: String,
}

pub async fn run(context: &Context, args: &ContextsArgs) -> Result {
    let contexts = context.client.contexts(&args.id).await?;
    context.output.print(&contexts, |contexts| {
        table(
            &["CONTEXT", "LANGUAGE", "STATE", "STARTED"],
            contexts.iter().map(|context| {
                [
                    context.id.clone(),
                    language_name(context.language).to_owned(),
                    state(context.state).to_owned(),
                    context.started_at.clone(),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn state(state: ContextState) -> &'static str {
    match state {
        ContextState::Idle => "idle",
        ContextState::Busy => "busy",
        ContextState::Ended => "ended",
    }
}
