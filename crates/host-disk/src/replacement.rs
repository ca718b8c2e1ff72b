//! Replacement of files.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file, which keeps its mode, or makes it. A crash leaves the old one or the new one, whole, and
/// beside it perhaps one with the extension `new`. The new one is on the disk once this returns.
///
/// # Errors
/// If the file cannot be written; then the old one is as it was.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    if let Ok(old) = path.metadata() {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod test {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_made_or_replaced_with_its_mode_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        replace_file(&path, b"a longer text").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // As a crash leaves it.
        fs::write(dir.path().join("record.new"), "half of a text that is longer than all others").unwrap();
        replace_file(&path, b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace_file(&dir.path().join("missing/record.json"), b"").is_err());
    }
}
