//! Kernels that are installed on this host.

use std::io;
use std::path::{Path, PathBuf};

use super::release;

/// Folder of the modules of installed kernels.
pub(super) const MODULES: &str = "/lib/modules";
/// Folder of installed kernels.
const BOOT: &str = "/boot";
const PREFIX: &str = "vmlinuz-";
/// Maximum number of names in the folder that are looked at; hosts have tens.
const NAMES_MAX: usize = 10_000;

/// Returns the newest kernel `/boot/vmlinuz-<release>` whose modules are in `/lib/modules/<release>`.
///
/// # Errors
/// If the folder cannot be read. One that is not there has no kernel.
pub fn newest_installed() -> io::Result<Option<PathBuf>> {
    newest(Path::new(BOOT), Path::new(MODULES))
}

fn newest(boot: &Path, modules: &Path) -> io::Result<Option<PathBuf>> {
    let names = match std::fs::read_dir(boot) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        names => names?,
    };
    let mut newest: Option<String> = None;
    for name in names.take(NAMES_MAX) {
        let Ok(name) = name?.file_name().into_string() else { continue };
        let found = name.strip_prefix(PREFIX).filter(|found| !found.is_empty() && modules.join(found).is_dir());
        let Some(found) = found else { continue };
        if newest.as_deref().is_none_or(|newest| release::compare(found, newest).is_gt()) {
            newest = Some(found.to_owned());
        }
    }
    Ok(newest.map(|release| boot.join(format!("{PREFIX}{release}"))))
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;

    #[test]
    fn the_newest_with_modules_is_taken() {
        let host = tempfile::tempdir().unwrap();
        let (boot, modules) = (host.path().join("boot"), host.path().join("modules"));
        assert_eq!(newest(&boot, &modules).unwrap(), None);
        fs::create_dir_all(&boot).unwrap();
        for name in ["vmlinuz-6.1.0-9", "vmlinuz-6.1.0-10", "vmlinuz-6.12.0", "vmlinuz", "config-7", "vmlinuz-"] {
            fs::write(boot.join(name), "").unwrap();
        }
        assert_eq!(newest(&boot, &modules).unwrap(), None);
        for release in ["6.1.0-9", "6.1.0-10", "7"] {
            fs::create_dir_all(modules.join(release)).unwrap();
        }
        assert_eq!(newest(&boot, &modules).unwrap(), Some(boot.join("vmlinuz-6.1.0-10")));
    }
}
