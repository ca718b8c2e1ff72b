//! The layer of environment variables.

use std::ffi::{OsStr, OsString};

use super::declare::Key;
use super::draft::Draft;
use super::fault::Source;
use super::inputs::OF_MACHINE_VARIABLE;
use super::nearest::nearest;
use super::tree::{Value, clip};
use super::{keys, unsupported};

/// Prefix of the server's variables.
const PREFIX: &str = "TIDEBOX_";

/// Variables of the client, which may be set in the same shell and are ignored.
const OF_THE_CLIENT: [&str; 4] = ["TIDEBOX_URL", "TIDEBOX_API_KEY", "TIDEBOX_USER_ID", "TIDEBOX_CA_FILE"];

/// Lays the variables over the files. An unknown variable only warns: other programs may share
/// the prefix. One that this version does not support is a fault, since the operator relies on
/// it.
pub(super) fn apply(env: &[(OsString, OsString)], draft: &mut Draft) {
    for (name, value) in env {
        let name = name.to_string_lossy();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if OF_THE_CLIENT.contains(&&*name) || name == OF_MACHINE_VARIABLE {
            continue;
        }
        let source = Source::Variable(name.clone().into_owned());
        if let Some((key, entry)) = keys::keys().iter().find_map(|key| Some((key, entry(&key.name, &name)?))) {
            set(key, &entry, value, &source, draft);
        } else if let Some(key) = unsupported::from_variable(rest) {
            draft.fault(key, &source, unsupported::MESSAGE);
        } else {
            let meant = nearest(&rest.to_lowercase(), keys::keys().iter().map(|key| key.name.as_str()));
            let hint = meant.map(|key| format!("; did you mean {} (`{key}`)?", variable(key))).unwrap_or_default();
            draft.warnings.push(format!("{} does not set any key{hint}", clip(&name)));
        }
    }
}

/// Returns the text that replaces the `*` of a key if the variable `name` sets it; empty for a
/// key without `*`. The text is in lower case, since variables have no other.
fn entry(key: &str, name: &str) -> Option<String> {
    let variable = variable(key);
    match variable.split_once('*') {
        None => (variable == name).then(String::new),
        Some((before, after)) => {
            let entry = name.strip_prefix(before)?.strip_suffix(after)?;
            let is_host = key.split_once(".*").is_some_and(|(section, _)| keys::names_hosts(section));
            (!entry.is_empty()).then(|| if is_host { host(entry) } else { entry.to_lowercase() })
        }
    }
}

/// Returns the registry that is part of the name of a variable, which has neither dots nor
/// colons: `_` is a dot and `__` a colon.
fn host(entry: &str) -> String {
    entry.to_lowercase().replace("__", ":").replace('_', ".")
}

fn set(key: &'static Key, entry: &str, value: &OsStr, source: &Source, draft: &mut Draft) {
    match value.to_str() {
        Some(text) => draft.set(key, entry, &Value::Bare(text.to_owned()), source),
        None => draft.fault(key.name.as_str(), source, "is not UTF-8"),
    }
}

/// Returns the variable that sets a key.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace(':', "__").replace('.', "_"))
}
