//! `tidebox version`: the release of this program.

use std::process::ExitCode;

use clap::Args;

use crate::failure::Result;
use crate::output::Output;

/// Print the version of this program
#[derive(Debug, Args)]
pub struct VersionArgs {}

/// Prints the release of this program; `tidebox doctor` shows the server's.
pub fn run(_args: &VersionArgs, output: Output) -> Result {
    let version = env!("CARGO_PKG_VERSION");
    output.print(&serde_json::json!({ "version": version }), |_| format!("tidebox {version}"))?;
    Ok(ExitCode::SUCCESS)
}
