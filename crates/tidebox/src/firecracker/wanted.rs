//! Files for virtual machines that the operator has named.

use std::path::PathBuf;
use std::time::Duration;

use server::config::Config;

/// Files that a flag or the configuration names.
#[derive(Debug, Default)]
pub struct Wanted {
    pub firecracker: Option<PathBuf>,
    pub jailer: Option<PathBuf>,
    pub kernel: Option<PathBuf>,
    pub modules: Option<PathBuf>,
    /// True or false where machines are to run in jails or not, `None` where a server that is root has
    /// them in jails.
    pub jail: Option<bool>,
    /// The longest boot of a guest; `None` where the configuration cannot be read.
    pub boot_timeout: Option<Duration>,
}

impl Wanted {
    /// Returns what the configuration names.
    pub fn of(config: &Config) -> Wanted {
        let set = &config.providers.firecracker;
        Wanted {
            firecracker: set.binary.clone(),
            jailer: set.jailer.binary.clone(),
            kernel: set.kernel.clone(),
            modules: set.modules.clone(),
            jail: set.jailer.enabled.forced(),
            boot_timeout: Some(set.boot_timeout),
        }
    }
}
