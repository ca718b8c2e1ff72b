//! `tidebox config show`: every key, its value in effect, and its source.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use server::config::{Setting, Source, load, nested};

use super::layers::{EXIT_FAULT, Layers};
use crate::failure::Result;
use crate::output::{Output, note};

/// Print every key with its effective value and where it was set
///
/// The output is YAML; secrets are hidden. Exits with 2 if the configuration has faults.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    layers: Layers,
}

/// A key as programs read it.
#[derive(Debug, Serialize)]
struct Line {
    key: String,
    value: serde_json::Value,
    source: Place,
}

impl From<&Setting> for Line {
    fn from(setting: &Setting) -> Line {
        Line { key: setting.key.clone(), value: setting.value.clone(), source: Place::from(&setting.source) }
    }
}

/// Source of a key's value.
#[derive(Debug, Serialize)]
#[serde(tag = "layer", rename_all = "snake_case")]
enum Place {
    Default,
    File { path: String },
    Variable { name: String },
}

impl From<&Source> for Place {
    fn from(source: &Source) -> Place {
        match source {
            Source::Default => Place::Default,
            Source::File(path) => Place::File { path: path.display().to_string() },
            Source::Variable(name) => Place::Variable { name: name.clone() },
        }
    }
}

pub fn run(args: &ShowArgs, output: Output) -> Result {
    let loaded = match load(&args.layers.inputs()) {
        Ok(loaded) => loaded,
        Err(faults) => {
            faults.iter().for_each(|fault| note(&format!("tidebox: {fault}")));
            return Ok(ExitCode::from(EXIT_FAULT));
        }
    };
    let settings = loaded.settings();
    let lines: Vec<Line> = settings.iter().map(Line::from).collect();
    output.print(&lines, |_| nested(&settings))?;
    Ok(ExitCode::SUCCESS)
}
