//! Files for virtual machines that the operator has named.

use std::path::PathBuf;

use serde_json::Value;
use server::config::Loaded;

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
}

impl Wanted {
    /// Returns what the configuration names.
    pub fn of(loaded: &Loaded) -> Wanted {
        let set = loaded.settings();
        let value = |key: &str| {
            let setting = set.iter().find(|setting| setting.key == format!("providers.firecracker.{key}"));
            setting.map(|setting| &setting.value)
        };
        let file = |key: &str| Some(PathBuf::from(value(key)?.as_str()?));
        Wanted {
            firecracker: file("binary"),
            jailer: file("jailer.binary"),
            kernel: file("kernel"),
            modules: file("modules"),
            // Else it is `auto`.
            jail: value("jailer.enabled").and_then(Value::as_bool),
        }
    }
}
