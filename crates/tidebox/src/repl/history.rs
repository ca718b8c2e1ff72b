//! File in which the lines of a language are remembered.

use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Returns the file for a language; `None` if this user has no home.
pub fn file(language: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("tidebox").join(format!("history-{language}")))
}

/// Makes the folder of the file. Only its owner may read it, because code holds secrets.
pub fn make_folder(file: &Path) -> std::io::Result<()> {
    match file.parent() {
        Some(folder) => std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder),
        None => Ok(()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_language_has_a_file_in_the_state_folder() {
        let with = |pairs: &'static [(&str, &str)]| {
            file("python", |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        for (pairs, expected) in [
            (&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")][..], Some("/s/tidebox/history-python")),
            (&[("XDG_STATE_HOME", ""), ("HOME", "/h")], Some("/h/.local/state/tidebox/history-python")),
            (&[("HOME", "/h")], Some("/h/.local/state/tidebox/history-python")),
            (&[], None),
        ] {
            assert_eq!(with(pairs), expected.map(PathBuf::from), "{pairs:?}");
        }
    }
}
