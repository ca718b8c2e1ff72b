//! Inputs of the configuration: files, environment and user.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// File of the machine, for a service.
const OF_MACHINE: &str = "/etc/tidebox/config.yaml";
/// Variable that names another file in its place; empty for none.
pub(super) const OF_MACHINE_VARIABLE: &str = "TIDEBOX_SYSTEM_CONFIG";

/// Inputs of [`load`](super::load()), which depends on nothing but these and the files that they name.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The file from the command line; replaces all usual files and must exist.
    pub config_file: Option<PathBuf>,
    /// The file of the machine, if there may be one.
    pub of_machine: Option<PathBuf>,
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
        let home = variable(&env, "HOME");
        let of_machine = variable(&env, OF_MACHINE_VARIABLE);
        Inputs {
            config_file,
            of_machine: of_machine
                .map_or_else(|| Some(OF_MACHINE.into()), |path| (path != OsStr::new("")).then_some(path)),
            home: home.filter(|home| home.is_absolute()),
            // A working directory that has been removed holds no file to find.
            current_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/nonexistent")),
            env,
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

/// Returns the path in an environment variable.
fn variable(env: &[(OsString, OsString)], wanted: &str) -> Option<PathBuf> {
    env.iter().find(|(name, _)| name == wanted).map(|(_, value)| PathBuf::from(value))
}

/// Returns the files to read, weakest first, and whether each must exist.
pub(super) fn files(inputs: &Inputs) -> Vec<(PathBuf, bool)> {
    if let Some(file) = &inputs.config_file {
        return vec![(inputs.current_dir.join(file), true)];
    }
    let of_user = inputs.home.as_ref().map(|home| (home.join(".tidebox/config.yaml"), false));
    let of_machine = inputs.of_machine.as_ref().map(|file| (inputs.current_dir.join(file), false));
    of_machine.into_iter().chain(of_user).chain([(inputs.current_dir.join("tidebox.yaml"), false)]).collect()
}
