//! Recipes: what a build begins with, its steps, and what its template starts.

use std::fmt;

use crate::control::spawn::SpawnRequest;

/// Steps of a build.
#[derive(Debug, Clone, Default)]
pub struct Recipe {
    /// Box that the build begins with.
    pub base: SpawnRequest,
    /// User of commands where neither a step nor the base names one, if the box has it.
    pub user: String,
    pub steps: Vec<Step>,
    /// Command that runs in each sandbox; of the base, if it has one and this is `None`.
    pub start: Option<String>,
    /// Command that succeeds once the start command is ready.
    pub ready: Option<String>,
}

/// Step of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Runs a line in a login shell.
    Run { line: String, user: Option<String> },
    /// Puts files of an archive into the box.
    Copy {
        /// Digest that the archive was uploaded with.
        archive: String,
        /// Path in the archive.
        source: String,
        target: String,
        /// Owner of the files, and group behind a colon; `None` for the user.
        owner: Option<String>,
        /// Mode, octal.
        mode: Option<String>,
    },
    /// Sets variables, in whose values `$NAME` stands for those before.
    Env(Vec<(String, String)>),
    /// Sets the working directory, which is made if it is missing.
    Workdir(String),
    /// Sets the user, which is made if it is missing.
    User(String),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Run { line, .. } => write!(f, "RUN {line}"),
            Step::Copy { source, target, .. } => write!(f, "COPY {source} {target}"),
            Step::Env(variables) => {
                let names: Vec<_> = variables.iter().map(|(name, _)| name.as_str()).collect();
                write!(f, "ENV {}", names.join(" "))
            }
            Step::Workdir(path) => write!(f, "WORKDIR {path}"),
            Step::User(name) => write!(f, "USER {name}"),
        }
    }
}
