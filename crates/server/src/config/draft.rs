//! The layers on their way to a whole configuration, with the faults found so far.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::declare::{Key, Section as _};
use super::fault::{Fault, Source};
use super::inputs::Inputs;
use super::keys::{self, Values};
use super::secret::hidden;
use super::settings::Config;
use super::tree::Value;

/// Configuration under construction, layer by layer.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) config: Config,
    pub(super) home: Option<PathBuf>,
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<String>,
    pub(super) sources: BTreeMap<String, Source>,
    pub(super) values: Values,
}

impl Draft {
    /// Starts with the built-in defaults.
    pub(super) fn new(inputs: &Inputs) -> Draft {
        let mut draft = Draft {
            config: Config::default(),
            home: inputs.home.clone(),
            faults: Vec::new(),
            warnings: Vec::new(),
            sources: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        if inputs.is_root {
            draft.config.data_dir = PathBuf::from("/var/lib/tidebox");
        } else if let Some(home) = &inputs.home {
            draft.config.data_dir = home.join(".local/share/tidebox");
        }
        draft
    }

    /// Lays one value over the weaker layers. `entry` replaces the `*` in the key's name.
    pub(super) fn set(&mut self, key: &'static Key, entry: &str, value: &Value, source: &Source) {
        let name = key.name.replace('*', entry);
        let marks = key.kind.marks();
        match self.config.set(&key.path(entry), value, self.home.as_deref()) {
            Ok(()) => {
                self.values.insert(name.clone(), if marks.is_secret { hidden(value) } else { value.clone() });
                self.sources.insert(name, source.clone());
            }
            // The value may be a secret: one of the wrong type, or one in place of its file's
            // name.
            Err(message) if marks.is_secret || marks.is_beside_a_secret => {
                let message = message.split_once(", not ").map_or(message.clone(), |(must, _)| {
                    format!("{must}; the value is not shown because it may be a secret")
                });
                self.fault(name, source, message);
            }
            Err(message) => self.fault(name, source, message),
        }
    }

    pub(super) fn fault(&mut self, key: impl Into<String>, source: &Source, message: impl Into<String>) {
        self.faults.push(Fault::new(key, source.clone(), message));
    }

    /// Returns whether a fault of `key` has been reported.
    pub(super) fn has_fault(&self, key: &str) -> bool {
        self.faults.iter().any(|fault| fault.key == key)
    }

    /// Returns whether a fault of the secret `key`, or of the file that holds it, has been
    /// reported.
    pub(super) fn has_fault_of_secret(&self, key: &str) -> bool {
        self.has_fault(key) || self.has_fault(&format!("{key}_file"))
    }

    /// Returns the source of the value that `key` has now.
    pub(super) fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }

    /// Returns the files that the keys which `select` accepts name.
    pub(super) fn files(&self, select: impl Fn(&Key) -> bool) -> Vec<(String, PathBuf)> {
        keys::files(&self.values, self.home.as_deref(), select)
    }
}
