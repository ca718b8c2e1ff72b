//! Arguments and exit code that the subcommands of `tidebox config` share.

use std::path::PathBuf;

use clap::Args;
use server::config::Inputs;

/// Layers of the configuration: the same as those of `tidebox serve`.
#[derive(Debug, Args)]
pub struct Layers {
    /// Configuration file, instead of ./tidebox.yaml, ~/.tidebox/config.yaml and /etc/tidebox/config.yaml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Layers {
    pub fn inputs(&self) -> Inputs {
        Inputs::from_process(self.config.clone())
    }
}

/// Exit code for a configuration with faults, as `tidebox serve` has it.
pub const EXIT_FAULT: u8 = 2;
