//! `tidebox destroy`: remove sandboxes.

use std::process::ExitCode;

use clap::Args;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Format, harmless, stdout};

/// Remove sandboxes and everything in them
#[derive(Debug, Args)]
#[command(visible_alias = "rm")]
// A removal never asks whether it should; fingers add it.
#[command(arg = clap::Arg::new("force").short('f').long("force").hide(true).action(clap::ArgAction::SetTrue))]
pub struct DestroyArgs {
    /// Sandbox IDs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// Removes each sandbox; a failure does not stop the others.
pub async fn run(context: &Context, args: &DestroyArgs) -> Result {
    let mut exit = 0;
    for id in &args.ids {
        match context.client.destroy(id).await {
            Ok(answer) => stdout(
                match context.output.format {
                    Format::Table => format!("{}\n", harmless(id)),
                    Format::Json => format!("{}\n", serde_json::json!({ "id": id, "status": answer.status })),
                }
                .as_bytes(),
            )?,
            Err(error) => {
                let failure = Failure::from(error);
                exit = failure.exit();
                context.output.complain(&failure);
            }
        }
    }
    Ok(ExitCode::from(exit))
}
