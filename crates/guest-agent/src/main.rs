//! The first process of a box, and the launcher that makes native boxes.

mod agent;
mod bare;
mod launch;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("agent") => agent::run(args.next().as_deref().unwrap_or_default()),
        Some("launch") => launch::run(),
        Some("bare") => bare::run(args),
        _ => ExitCode::FAILURE,
    }
}
