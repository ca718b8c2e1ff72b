//! Programs of the host that boxes are made with.

use std::path::{Path, PathBuf};

/// Returns the path of a program: a name with a slash is a path, any other is looked up in
/// `PATH`.
pub(crate) fn find(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return std::path::absolute(name).ok();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file() && program.is_absolute())
}
