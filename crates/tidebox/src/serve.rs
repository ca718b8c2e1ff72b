//! `tidebox serve`: the server itself.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use providers::Chain;
use server::Options;
use server::config::{self, Config, Inputs};

use crate::failure::{Failure, Result};
use crate::{log, memory};

/// Run the server
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file, instead of ./tidebox.yaml, ~/.tidebox/config.yaml and /etc/tidebox/config.yaml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Remove all boxes of this server when it stops; without this option, they keep running
    #[arg(long)]
    pub destroy_on_exit: bool,
}

/// Exit code for a configuration with faults.
const EXIT_CONFIGURATION: u8 = 2;
/// Exit code if the server could not start, or a part of it ended by itself.
const EXIT_FAILED: u8 = 1;

/// Runs the server until a signal stops it.
pub fn run(args: &ServeArgs) -> Result {
    run_as(args.config.clone(), Role { destroy_on_exit: args.destroy_on_exit, ..Role::default() }, |_| {})
}

/// Role of the server, which the command line sets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Role {
    /// True if the server removes its boxes when it stops.
    pub destroy_on_exit: bool,
    /// True if the server works for a control plane.
    pub as_worker: bool,
}

/// Runs the server with `change` applied to the configuration.
pub fn run_as(file: Option<PathBuf>, role: Role, change: impl FnOnce(&mut Config)) -> Result {
    let mut loaded = match config::load(&Inputs::from_process(file)) {
        Ok(loaded) => loaded,
        Err(faults) => {
            let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
            return complain(&lines);
        }
    };
    change(&mut loaded.config);
    let (log_budget, _flush) =
        log::start(&loaded.config.logging).map_err(|error| Failure::io("cannot start threads", &error))?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    memory::give_back();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::io("cannot start threads", &error))?;
    runtime.spawn(log_budget.keep());
    let Role { destroy_on_exit, as_worker } = role;
    let options = Options {
        destroy_on_exit,
        as_worker,
        memory: memory::figures,
        log_lines_lost: log::lost,
        ready: memory::forget_start,
    };
    let ended = runtime.block_on(server::run(loaded.config, options));
    // Tasks that did not finish in time are not waited for again; the next start cleans up.
    runtime.shutdown_background();
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            log::say(&format!("tidebox: {}", Chain(&failure)));
            Ok(ExitCode::from(EXIT_FAILED))
        }
    }
}

/// Writes the faults of the configuration to stderr and returns the exit code.
fn complain(lines: &[String]) -> Result {
    let mut stderr = std::io::stderr().lock();
    for line in lines {
        // Stderr may be closed; the exit code says the same.
        let _ = writeln!(stderr, "tidebox: {line}");
    }
    Ok(ExitCode::from(EXIT_CONFIGURATION))
}
