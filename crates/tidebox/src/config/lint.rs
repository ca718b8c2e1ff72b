//! `tidebox config lint`: one line for each finding.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use server::config::lint::{Finding, Verdict, lint, modes};
use server::config::{Fault, load};

use super::layers::{EXIT_FAULT, Layers};
use crate::failure::Result;
use crate::output::{Output, harmless};

/// Check the configuration and print a line per finding: pass, warn or fail, the key, and what to do
///
/// Exits with 0 if no finding is a failure, with 1 if any is, and with 2 if the configuration has faults that keep
/// `tidebox serve` from starting. Environment variables apply: run it as the same user and with the same environment
/// as the server.
#[derive(Debug, Args)]
pub struct LintArgs {
    #[command(flatten)]
    layers: Layers,
    /// Fail, instead of warn, on settings that are forbidden in production
    #[arg(long)]
    production: bool,
}

/// Exit code if a finding is a failure.
const EXIT_FAILED: u8 = 1;

/// A finding as programs read it.
#[derive(Debug, Serialize)]
struct Line {
    verdict: &'static str,
    /// Key of the finding; empty if a whole file is at fault.
    key: String,
    message: String,
    /// Remedy; empty if there is nothing to do, or `message` says it.
    remedy: String,
}

impl From<Finding> for Line {
    fn from(Finding { verdict, key, message, remedy }: Finding) -> Line {
        Line { verdict: verdict.as_str(), key, message, remedy }
    }
}

impl From<&Fault> for Line {
    fn from(fault: &Fault) -> Line {
        let message = format!("({}) {}", fault.source, fault.message);
        Line { verdict: Verdict::Fail.as_str(), key: fault.key.clone(), message, remedy: String::new() }
    }
}

pub fn run(args: &LintArgs, output: Output) -> Result {
    let (lines, exit) = match load(&args.layers.inputs()) {
        Ok(loaded) => {
            let findings = lint(&loaded, &modes(&loaded), args.production);
            let fails = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
            (findings.into_iter().map(Line::from).collect::<Vec<_>>(), if fails { EXIT_FAILED } else { 0 })
        }
        Err(faults) => (faults.iter().map(Line::from).collect(), EXIT_FAULT),
    };
    output.print(&lines, |lines| lines.iter().map(shown).collect())?;
    Ok(ExitCode::from(exit))
}

/// Formats a line: `fail  auth.enabled: is false: …; set it to true`.
fn shown(line: &Line) -> String {
    let key = if line.key.is_empty() { String::new() } else { format!("{}: ", line.key) };
    let remedy = if line.remedy.is_empty() { String::new() } else { format!("; {}", line.remedy) };
    format!("{}\n", harmless(&format!("{}  {key}{}{remedy}", line.verdict, line.message)))
}
