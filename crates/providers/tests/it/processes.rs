//! Processes of this host.

use std::path::Path;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the processes of the host that have `text` in the file `file` of their folder in
/// `/proc`.
pub(crate) fn processes_with(file: &str, text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbered =
        entries.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
    let read =
        |path: &Path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    numbered
        .filter(|entry| read(&entry.path().join(file)).contains(text))
        .map(|entry| entry.path().display().to_string())
        .collect()
}
