//! The layer of a YAML file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::draft::Draft;
use super::fault::Source;
use super::nearest::nearest;
use super::tree::{self, FILE_BYTES_MAX, Value};
use super::{keys, unsupported};

/// Lays the file at `path` over the weaker layers. A missing file is a fault only if it is
/// `needed`.
pub(super) fn apply(path: &Path, needed: bool, draft: &mut Draft) {
    let source = Source::File(path.to_owned());
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !needed => return,
        Err(error) => return draft.fault("", &source, format!("cannot be read: {error}")),
    };
    apply_text(&text, &source, draft);
}

/// Lays the text of a file over the weaker layers.
pub(super) fn apply_text(text: &str, source: &Source, draft: &mut Draft) {
    match tree::parse(text) {
        Ok(Value::Null) => {}
        Ok(Value::Map(entries)) => section("", &entries, source, draft),
        Ok(value) => draft.fault("", source, format!("contains {}; write sections and keys", value.kind())),
        Err(message) => draft.fault("", source, format!("is not YAML: {message}")),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// Reads the entries below the section `name`, which is empty at the top.
/// The recursion is as deep as known sections are.
fn section(name: &str, entries: &[(String, Value)], source: &Source, draft: &mut Draft) {
    let mut seen = BTreeSet::new();
    for (part, value) in entries {
        let dotted = if name.is_empty() { part.clone() } else { format!("{name}.{part}") };
        if part.contains('.') && !keys::is_map(name) {
            draft.fault(dotted, source, "has a dot in its name; write each part as a separate section");
        } else if !seen.insert(part) {
            draft.fault(dotted, source, "is given twice; keep one");
        } else if let Some((key, entry)) = keys::find(&dotted) {
            draft.set(key, entry, value, source);
        } else if keys::is_map(name) || sections().any(|known| is_section(known, &dotted)) {
            if let Value::Map(entries) = value {
                section(&dotted, entries, source, draft);
            } else if *value != Value::Null {
                let found = value.kind();
                draft.fault(dotted, source, format!("is a section, not {found}; write its keys below it"));
            }
        } else if unsupported::is_unsupported(&dotted) {
            refuse(&dotted, value, source, draft);
        } else {
            let meant = nearest(&dotted, keys::keys().iter().map(|key| key.name.as_str()).chain(sections()));
            let hint = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            draft.fault(dotted, source, format!("is not a known key{hint}"));
        }
    }
}

/// Reports every key at or below one that this version does not support, a line each.
fn refuse(name: &str, value: &Value, source: &Source, draft: &mut Draft) {
    if let Value::Map(entries) = value
        && !entries.is_empty()
    {
        for (part, value) in entries {
            refuse(&format!("{name}.{part}"), value, source, draft);
        }
    } else {
        draft.fault(name, source, unsupported::MESSAGE);
    }
}

/// Returns the names of all sections.
fn sections() -> impl Iterator<Item = &'static str> {
    keys::parts().iter().map(|part| part.name.as_str())
}

/// Returns whether `dotted` is the section `known`, in which `*` stands for any name.
fn is_section(known: &str, dotted: &str) -> bool {
    let mut known = known.split('.');
    let mut dotted = dotted.split('.');
    loop {
        match (known.next(), dotted.next()) {
            (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(known), Some(part)) if known == part => {}
            _ => return false,
        }
    }
}
