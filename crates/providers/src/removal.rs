//! Removing what a box or an image leaves on disk, however hostile it is.
//!
//! A guest, or a layer, can nest directories so deep that no path reaches the end, and that
//! a descriptor for each level would be more than a process may have. So every
//! sub-directory is first moved up, beside its parent, and emptied there: no
//! recursion, one descriptor, short paths. Links are removed, never followed.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Removes the directory `root`, whose content nobody changes any more.
pub(crate) fn remove_tree(root: &Path) -> io::Result<()> {
    match root.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.is_dir() => return fs::remove_file(root),
        Ok(_) => {}
    }
    unlock(root)?;
    let mut lifted = Lifted { root, count: 0 };
    // What is moved up during a pass may or may not be seen by it.
    loop {
        let mut empty = true;
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            empty = false;
            if entry.file_type()?.is_dir() {
                lifted.empty_out(&entry.path())?;
            } else {
                remove_file(&entry.path())?;
            }
        }
        if empty {
            return absent_is_fine(fs::remove_dir(root));
        }
    }
}

struct Lifted<'a> {
    root: &'a Path,
    count: u64,
}

impl Lifted<'_> {
    /// Removes a directory right below the root; its own directories move up.
    fn empty_out(&mut self, dir: &Path) -> io::Result<()> {
        unlock(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                unlock(&entry.path())?;
                self.lift(&entry.path())?;
            } else {
                remove_file(&entry.path())?;
            }
        }
        absent_is_fine(fs::remove_dir(dir))
    }

    fn lift(&mut self, dir: &Path) -> io::Result<()> {
        loop {
            let target: PathBuf = self.root.join(format!(".lifted-{}", self.count));
            self.count += 1;
            match renameat_with(CWD, dir, CWD, &target, RenameFlags::NOREPLACE) {
                // The guest had the same idea for a name.
                Err(Errno::EXIST) => {}
                other => return other.map_err(io::Error::from),
            }
        }
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_file(path))
}

/// A server that was replaced may still be busy with the same tree.
fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Without privileges the modes that a guest sets hold for us too.
fn unlock(dir: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_too_deep_for_any_path_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("box");
        // Built from the inside out: each level is put into a new one.
        fs::create_dir(&root).unwrap();
        let (inner, outer) = (root.join("inner"), root.join("outer"));
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "deep").unwrap();
        for _ in 0..10_000 {
            fs::create_dir(&outer).unwrap();
            fs::rename(&inner, outer.join("a-directory")).unwrap();
            fs::rename(&outer, &inner).unwrap();
        }
        remove_tree(&root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn links_are_removed_and_what_they_point_to_stays() {
        let temp = tempfile::tempdir().unwrap();
        let kept = temp.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "kept").unwrap();
        let root = temp.path().join("box");
        fs::create_dir(&root).unwrap();
        symlink(&kept, root.join("link")).unwrap();
        symlink("/nowhere", root.join(".lifted-0")).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink(&kept, root.join("a/b/link")).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists());
        assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "kept");
    }

    #[test]
    fn directories_that_forbid_everything_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("box");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        for dir in ["a/b/c", "a/b", "a", ""] {
            fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn what_is_not_there_is_removed_already() {
        remove_tree(Path::new("/nowhere/at/all")).unwrap();
    }
}
