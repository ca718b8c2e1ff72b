//! The layers laid over each other, and checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::draft::Draft;
use super::fault::{Fault, Source};
use super::inputs::{Inputs, files};
use super::keys::Values;
use super::settings::Config;
use super::{check, environment, file};

/// A configuration without faults.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Settings, with the defaults filled in.
    pub config: Config,
    /// Warnings for the operator, one line each.
    pub warnings: Vec<String>,
    /// Source of each key that is not at its built-in default (the last that set it).
    pub sources: BTreeMap<String, Source>,
    /// Value written for each key in `sources`, with secrets hidden, and each derived one.
    pub(super) values: Values,
    pub(super) home: Option<PathBuf>,
}

/// Reads all layers.
///
/// # Errors
/// Every [`Fault`] there is, in the order of the layers; each is one line.
pub fn load(inputs: &Inputs) -> Result<Loaded, Vec<Fault>> {
    let mut draft = Draft::new(inputs);
    for (path, needed) in files(inputs) {
        file::apply(&path, needed, &mut draft);
    }
    environment::apply(&inputs.env, &mut draft);
    check::finish(&mut draft);
    if !draft.faults.is_empty() {
        return Err(draft.faults);
    }
    let Draft { config, home, warnings, sources, values, .. } = draft;
    Ok(Loaded { config, warnings, sources, values, home })
}
