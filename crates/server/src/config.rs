//! Configuration: what the operator may set, where it came from, and what is
//! wrong with it.
//!
//! One table of keys (`key`) drives everything: how a key is read, which
//! environment variable sets it, what is suggested for a misspelt one, and the
//! example file. Layers, weakest first: built-in defaults,
//! `~/.tidebox/config.yaml`, `./tidebox.yaml`, variables `TIDEBOX_*`. A file
//! named on the command line replaces both files.
//!
//! All faults are collected, so that an operator mends a file in one go. A key
//! that the specification knows and this version does not build is a fault as
//! well: who writes `auth.enabled: true` must not get an open server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

mod check;
mod environment;
mod fault;
mod file;
mod key;
mod nearest;
mod read;
mod tree;
mod unsupported;

pub use fault::{Fault, Source};

/// Everything that the operator may set, with nothing left to default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where and for whom the server listens.
    pub server: Server,
    /// The folder that holds everything that must survive a restart; absolute.
    pub data_dir: PathBuf,
    /// Where rows are kept.
    pub database: Database,
    /// What a request that says nothing gets, and the most it may ask for.
    pub defaults: Defaults,
    /// Bounds on what passes through the server.
    pub limits: Limits,
    /// How long traces are kept.
    pub retention: Retention,
    /// What the server says about itself.
    pub logging: Logging,
    /// The runtimes.
    pub providers: Providers,
}

/// Where and for whom the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The address.
    pub host: IpAddr,
    /// The TCP port; 0 lets the kernel choose one.
    pub port: u16,
    /// The domain shown on spawn responses.
    pub preview_domain: String,
    /// Further names that a request's `Host` may have; lower case, no ports.
    pub allowed_hosts: Vec<String>,
}

/// Where rows are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// The SQLite file; absolute.
    pub path: PathBuf,
}

/// What a request that says nothing gets, and the most it may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The image; `None` leaves it to the provider.
    pub image: Option<String>,
    /// A sandbox's lifetime.
    pub ttl: Duration,
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// The most processes and threads in a sandbox.
    pub pids: u32,
    /// The longest lifetime that may be asked for.
    pub max_ttl: Duration,
    /// A command's deadline.
    pub default_exec_timeout: Duration,
    /// The longest deadline that may be asked for.
    pub max_exec_timeout: Duration,
    /// The most active sandboxes; 0 for no limit.
    pub max_sandboxes: u64,
    /// The most active sandboxes of one owner; 0 for no limit.
    pub max_sandboxes_per_owner: u64,
}

/// Bounds on what passes through the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of each output stream in a buffered result.
    pub max_output_bytes: usize,
    /// The largest file that may be written.
    pub max_file_bytes: u64,
    /// Free space in mebibytes that sandboxes must leave to the server.
    pub reserve_disk_mb: u64,
}

/// How long traces are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// How long the row of a destroyed sandbox stays.
    pub destroyed: Duration,
}

/// What the server says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    /// The least serious line that is written.
    pub level: Level,
    /// How a line looks.
    pub format: Format,
}

/// How serious a log line must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What needs an operator.
    Error,
    /// What may need one.
    Warn,
    /// What the server does.
    Info,
    /// How it does it.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// The name as it is configured, which is the one `tracing` knows.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// The runtimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Providers {
    /// Which one a request that names none gets.
    pub default: DefaultProvider,
    /// Boxes made of the kernel's own namespaces.
    pub native: Native,
    /// The test double.
    pub mock: Mock,
}

/// Which provider a request that names none gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultProvider {
    /// The first that is healthy.
    Auto,
    /// This one.
    Named(String),
}

/// Whether a provider is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enabled {
    /// When what it needs is there.
    Auto,
    /// Always, and shown unhealthy while it is not.
    True,
    /// Never.
    False,
}

/// Boxes made of the kernel's own namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Native {
    /// Whether it is offered.
    pub enabled: Enabled,
    /// First host id and count of the range that boxes are mapped to; `None`
    /// leaves the choice to the provider.
    pub subids: Option<(u32, u32)>,
    /// The control group below which boxes get theirs; `None` leaves the choice
    /// to the provider. Without `.` and `..`.
    pub cgroup_parent: Option<String>,
}

/// The test double.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mock {
    /// Whether it is offered.
    pub enabled: bool,
}

/// What [`load`] looks at, so that it is a function of its argument and of the
/// files that this names.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The file from the command line; replaces both usual files and must exist.
    pub config_file: Option<PathBuf>,
    /// The home directory, if there is one.
    pub home: Option<PathBuf>,
    /// The folder in which `tidebox.yaml` is looked for.
    pub current_dir: PathBuf,
    /// All environment variables.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the server runs as root.
    pub is_root: bool,
}

impl Inputs {
    /// The inputs of this process.
    #[must_use]
    pub fn from_process(config_file: Option<PathBuf>) -> Inputs {
        let env: Vec<_> = std::env::vars_os().collect();
        let home = env.iter().find(|(name, _)| name == "HOME").map(|(_, value)| PathBuf::from(value));
        Inputs {
            config_file,
            home: home.filter(|home| home.is_absolute()),
            // A folder that was removed below us holds no file to find.
            current_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/nonexistent")),
            env,
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

/// A configuration without faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// What the operator should know, one line each.
    pub warnings: Vec<String>,
    /// Where each key that is not at its built-in default was set (last).
    pub sources: BTreeMap<&'static str, Source>,
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
    Ok(Loaded { config: draft.config, warnings: draft.warnings, sources: draft.sources })
}

/// The files to read, weakest first, and whether each must exist.
fn files(inputs: &Inputs) -> Vec<(PathBuf, bool)> {
    if let Some(file) = &inputs.config_file {
        return vec![(inputs.current_dir.join(file), true)];
    }
    let of_user = inputs.home.as_ref().map(|home| (home.join(".tidebox/config.yaml"), false));
    of_user.into_iter().chain([(inputs.current_dir.join("tidebox.yaml"), false)]).collect()
}

/// A configuration while its layers are laid over each other.
#[derive(Debug)]
struct Draft {
    config: Config,
    home: Option<PathBuf>,
    faults: Vec<Fault>,
    warnings: Vec<String>,
    sources: BTreeMap<&'static str, Source>,
}

impl Draft {
    /// The built-in defaults.
    fn new(inputs: &Inputs) -> Draft {
        let mut draft = Draft {
            config: blank(),
            home: inputs.home.clone(),
            faults: Vec::new(),
            warnings: Vec::new(),
            sources: BTreeMap::new(),
        };
        for key in key::KEYS {
            if let key::Default::Text(text) = key.default {
                let value = tree::Value::Bare(text.to_owned());
                // Cannot fail: a test loads the defaults.
                if let Err(message) = (key.read)(&mut draft.config, &value, draft.home.as_deref()) {
                    draft.faults.push(Fault::new(key.name, Source::Default, message));
                }
            }
        }
        if inputs.is_root {
            draft.config.data_dir = PathBuf::from("/var/lib/tidebox");
        } else if let Some(home) = &inputs.home {
            draft.config.data_dir = home.join(".local/share/tidebox");
        }
        draft
    }

    /// Lays one value over the weaker layers.
    fn set(&mut self, key: &'static key::Key, value: &tree::Value, source: &Source) {
        match (key.read)(&mut self.config, value, self.home.as_deref()) {
            Ok(()) => {
                self.sources.insert(key.name, source.clone());
            }
            Err(message) => self.fault(key.name, source, message),
        }
    }

    fn fault(&mut self, key: impl Into<String>, source: &Source, message: impl Into<String>) {
        self.faults.push(Fault::new(key, source.clone(), message));
    }

    /// Where the value that `key` has now came from.
    fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }
}

/// Nothing set: what the table of keys fills with its defaults. An empty path
/// stands for one that is worked out at the end.
fn blank() -> Config {
    Config {
        server: Server {
            host: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            port: 0,
            preview_domain: String::new(),
            allowed_hosts: Vec::new(),
        },
        data_dir: PathBuf::new(),
        database: Database { path: PathBuf::new() },
        defaults: Defaults {
            image: None,
            ttl: Duration::ZERO,
            memory_mb: 0,
            vcpus: 0,
            pids: 0,
            max_ttl: Duration::ZERO,
            default_exec_timeout: Duration::ZERO,
            max_exec_timeout: Duration::ZERO,
            max_sandboxes: 0,
            max_sandboxes_per_owner: 0,
        },
        limits: Limits { max_output_bytes: 0, max_file_bytes: 0, reserve_disk_mb: 0 },
        retention: Retention { destroyed: Duration::ZERO },
        logging: Logging { level: Level::Info, format: Format::Auto },
        providers: Providers {
            default: DefaultProvider::Auto,
            native: Native { enabled: Enabled::Auto, subids: None, cgroup_parent: None },
            mock: Mock { enabled: false },
        },
    }
}

#[cfg(test)]
mod test;
