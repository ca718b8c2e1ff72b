//! Secrets that are kept in files of their own.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::declare::Section as _;
use super::draft::Draft;
use super::tree::Value;
use super::{keys, read};

/// Reads every secret whose file is named. One that is given both ways is a fault: neither takes
/// precedence.
pub(super) fn resolve(draft: &mut Draft) {
    for (file_key, path) in draft.files(|key| key.kind.marks().is_file_of_secret) {
        let Some((key, entry)) = file_key.strip_suffix("_file").and_then(keys::find) else { continue };
        let source = draft.source(&file_key);
        let inline = draft.values.iter().find(|(name, value)| {
            **value != Value::Null && key.entry(name).is_some_and(|other| keys::is_same_entry(key, entry, other))
        });
        if let Some((name, _)) = inline {
            let message = format!("is set, and so is `{name}` ({}); keep one of the two", draft.source(name));
            draft.fault(file_key, &source, message);
            continue;
        }
        let secret = secret_in(&path).map_err(|why| format!("`{}` {why}", path.display()));
        let read = secret.and_then(|secret| draft.config.set(&key.path(entry), &Value::Text(secret), None));
        if let Err(message) = read {
            draft.fault(file_key, &source, message);
        }
    }
}

fn unreadable(error: std::io::Error) -> String {
    format!("cannot be read: {error}")
}

/// Returns the secret in a file: all of its text but the line ending.
fn secret_in(path: &Path) -> Result<String, String> {
    // A secret, the longest line ending, and one byte to see that there is more.
    let limit = read::SECRET_BYTES_MAX as u64 + 3;
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err("is a folder; name the file that holds the secret".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| "is not text; write the secret as printable ASCII".to_owned())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err("is empty; write the secret into it".to_owned());
    }
    if text.len() > read::SECRET_BYTES_MAX {
        return Err(format!("is longer than the {} characters that a secret may have", read::SECRET_BYTES_MAX));
    }
    read::secret_text(text).map_err(|why| format!("is not a valid secret: it {why}"))?;
    Ok(text.to_owned())
}
