//! Inputs of the configuration: files, environment and user.

use std::ffi::OsString;
use std::path::PathBuf;

/// Inputs of [`load`](super::load()), which depends on nothing but these and the files that they name.
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

/// Returns the files to read, weakest first, and whether each must exist.
pub(super) fn files(inputs: &Inputs) -> Vec<(PathBuf, bool)> {
    if let Some(file) = &inputs.config_file {
        return vec![(inputs.current_dir.join(file), true)];
    }
    let of_user = inputs.home.as_ref().map(|home| (home.join(".tidebox/config.yaml"), false));
    of_user.into_iter().chain([(inputs.current_dir.join("tidebox.yaml"), false)]).collect()
}
