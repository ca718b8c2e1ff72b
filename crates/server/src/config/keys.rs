//! The declared keys, by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::declare::{Declared, Key, Part, Section as _};
use super::read::{Optional, PATH, Reader as _};
use super::settings::Config;
use super::tree::Value;

static DECLARED: LazyLock<Declared> = LazyLock::new(|| {
    let mut declared = Declared::default();
    Config::list("", &mut declared);
    declared
});

/// Returns every key.
pub(super) fn keys() -> &'static [Key] {
    &DECLARED.keys
}

/// Returns every section.
pub(super) fn parts() -> &'static [Part] {
    &DECLARED.parts
}

/// Returns the key of this dotted name, and the text that replaces the `*`.
pub(super) fn find(dotted: &str) -> Option<(&'static Key, &str)> {
    keys().iter().find_map(|key| Some((key, key.entry(dotted)?)))
}

/// Returns whether the section `name` is a map. Its entries may have dots in their names: they are
/// hosts, or workers, which are mostly named after hosts.
pub(super) fn is_map(name: &str) -> bool {
    parts().iter().any(|part| part.name == name && part.entries.is_some())
}

/// Returns whether the entries of the section `name` are named after hosts.
pub(super) fn names_hosts(name: &str) -> bool {
    parts().iter().any(|part| part.name == name && part.entries.is_some_and(|entries| entries.is_host))
}

/// Returns whether two texts for the `*` of `key` name one entry: a registry has several spellings.
pub(super) fn is_same_entry(key: &Key, one: &str, other: &str) -> bool {
    let map = key.name.split_once(".*").map(|(map, _)| map);
    let entries = parts().iter().find(|part| map == Some(&part.name)).and_then(|part| part.entries);
    one == other
        || entries.is_some_and(|entries| {
            let stored = (entries.check)(one);
            stored.is_ok() && stored == (entries.check)(other)
        })
}

/// Values by dotted name, as they were written.
pub(super) type Values = BTreeMap<String, Value>;

/// Returns the files that the keys which `select` accepts name, in the order of the keys.
pub(super) fn files(values: &Values, home: Option<&Path>, select: impl Fn(&Key) -> bool) -> Vec<(String, PathBuf)> {
    let keys = keys().iter().filter(|key| select(key));
    let set = keys.flat_map(|key| values.iter().filter(|(name, _)| key.entry(name).is_some()));
    set.filter_map(|(name, value)| Some((name.clone(), Optional(PATH).read(value, home).ok()??))).collect()
}
