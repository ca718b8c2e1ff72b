//! Configuration: the operator's settings, the source of each value, and the faults found.
//!
//! A key is declared once, in `settings`, with its type, default, reader and description
//! (`declare`). From there come the structure that the server reads, the environment variables, the
//! suggestions for misspelt keys, `config/example.yaml`, `config/schema.json` and the table of
//! docs/operate/configuration.md. Layers, weakest first: built-in defaults,
//! `~/.tidebox/config.yaml`, `./tidebox.yaml`, variables `TIDEBOX_*`. A file named on the command
//! line replaces both files.
//!
//! All faults are collected, so that an operator corrects a file in one go. A key that the
//! specification has and this version does not support is a fault too: an operator who writes
//! `auth.enabled: true` must not get an open server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

mod check;
mod declare;
mod environment;
mod fault;
mod file;
mod keys;
pub mod lint;
mod nearest;
mod read;
mod schema;
mod secret;
mod secret_file;
mod settings;
mod show;
mod text;
mod tree;
mod unsupported;

use declare::{Key, Section as _};
pub use fault::{Fault, Source};
pub use schema::schema;
pub use secret::Secret;
pub use settings::*;
pub use show::{Setting, nested};

/// Inputs of [`load`], which depends on nothing but these and the files that they name.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The file from the command line; replaces both usual files and must exist.
    pub config_file: Option<PathBuf>,
    /// The home directory, if there is one.
    pub home: Option<PathBuf>,
    /// The folder in which `tidebox.yaml` is looked for.
    pub current_dir: PathBuf,
    /// Environment variables; only those that start with `TIDEBOX_` are read.
    pub env: Vec<(OsString, OsString)>,
    /// True if the server runs as root, which changes the default of `data_dir`.
    pub is_root: bool,
}

impl Inputs {
    /// Collects the inputs of this process.
    #[must_use]
    pub fn from_process(config_file: Option<PathBuf>) -> Inputs {
        let env: Vec<_> = std::env::vars_os().collect();
        let home = env.iter().find(|(name, _)| name == "HOME").map(|(_, value)| PathBuf::from(value));
        Inputs {
            config_file,
            home: home.filter(|home| home.is_absolute()),
            // A working directory that has been removed holds no file to find.
            current_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/nonexistent")),
            env,
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

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
    values: keys::Values,
    home: Option<PathBuf>,
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

/// Returns the files to read, weakest first, and whether each must exist.
fn files(inputs: &Inputs) -> Vec<(PathBuf, bool)> {
    if let Some(file) = &inputs.config_file {
        return vec![(inputs.current_dir.join(file), true)];
    }
    let of_user = inputs.home.as_ref().map(|home| (home.join(".tidebox/config.yaml"), false));
    of_user.into_iter().chain([(inputs.current_dir.join("tidebox.yaml"), false)]).collect()
}

/// Configuration under construction, layer by layer.
#[derive(Debug)]
struct Draft {
    config: Config,
    home: Option<PathBuf>,
    faults: Vec<Fault>,
    warnings: Vec<String>,
    sources: BTreeMap<String, Source>,
    values: keys::Values,
}

impl Draft {
    /// Starts with the built-in defaults.
    fn new(inputs: &Inputs) -> Draft {
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
    fn set(&mut self, key: &'static Key, entry: &str, value: &tree::Value, source: &Source) {
        let name = key.name.replace('*', entry);
        let marks = key.kind.marks();
        match self.config.set(&key.path(entry), value, self.home.as_deref()) {
            Ok(()) => {
                self.values.insert(name.clone(), if marks.is_secret { show::hidden(value) } else { value.clone() });
                self.sources.insert(name, source.clone());
            }
            // The value may be a secret: one of the wrong type, or one in place of its file's
            // name.
            Err(message) if marks.is_secret || marks.is_beside_a_secret => {
                let message = message.split_once(", not ").map_or(message.clone(), |(must, _)| {
                    format!("{must}; what is there is not repeated, since it may be a secret")
                });
                self.fault(name, source, message);
            }
            Err(message) => self.fault(name, source, message),
        }
    }

    fn fault(&mut self, key: impl Into<String>, source: &Source, message: impl Into<String>) {
        self.faults.push(Fault::new(key, source.clone(), message));
    }

    /// Returns the source of the value that `key` has now.
    fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }

    /// Returns the files that the keys which `select` accepts name.
    fn files(&self, select: impl Fn(&Key) -> bool) -> Vec<(String, PathBuf)> {
        keys::files(&self.values, self.home.as_deref(), select)
    }
}

#[cfg(test)]
mod test;
