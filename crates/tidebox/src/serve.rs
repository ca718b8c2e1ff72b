//! `tidebox serve`: the server itself.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};

/// Run the server
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file, instead of ./tidebox.yaml and ~/.tidebox/config.yaml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Remove all boxes of this server when it stops; without it they run on
    #[arg(long)]
    pub destroy_on_exit: bool,
}

/// Runs until told to stop.
pub fn run(args: &ServeArgs) -> Result {
    start(args.config.as_deref(), args.destroy_on_exit)
}

/// The one place where the command line meets the server.
fn start(_config: Option<&std::path::Path>, _destroy_on_exit: bool) -> Result {
    Err(Failure::new("unavailable", "server is not linked"))
}
