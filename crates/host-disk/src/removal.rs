//! Removal of the directory trees of boxes and images, however hostile they are.
//!
//! A guest or a layer can nest directories so deep that no path reaches the end, and that one
//! descriptor for each level exceeds the limit of a process. So every subdirectory is first moved
//! up, beside its parent, and emptied there: no recursion, one descriptor, short paths. Links are
//! removed, never followed.
//!
//! Two processes may remove the same tree at once, such as a server and the one that replaces it.
//! An entry that the other has removed or moved up is no error.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Removes the directory `root`. Only other removals may change its content meanwhile.
///
/// # Errors
/// If something below it cannot be read or removed. A missing `root` is no error.
pub fn remove_tree(root: &Path) -> io::Result<()> {
    match root.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.is_dir() => return remove_file(root),
        Ok(_) => {}
    }
    absent_is_fine(unlock(root))?;
    let mut lifted = Lifted { root, count: 0, surprises: 0 };
    // A pass may or may not see what was moved up during it.
    while !lifted.pass()? {}
    Ok(())
}

/// Most times that another removal may move something into a directory just emptied.
const SURPRISES_MAX: u32 = 10_000;

struct Lifted<'a> {
    root: &'a Path,
    count: u64,
    surprises: u32,
}

impl Lifted<'_> {
    /// Removes what it sees below the root, and the root if that is nothing; returns whether the
    /// root is gone.
    fn pass(&mut self) -> io::Result<bool> {
        let mut empty = true;
        for_each(self.root, |path, is_dir| {
            empty = false;
            if is_dir { absent_is_fine(self.empty_out(path)) } else { remove_file(path) }
        })?;
        Ok(empty && self.remove_dir(self.root)?)
    }

    /// Removes a directory right below the root; its subdirectories move up.
    fn empty_out(&mut self, dir: &Path) -> io::Result<()> {
        unlock(dir)?;
        for_each(dir, |path, is_dir| {
            if is_dir { absent_is_fine(unlock(path).and_then(|()| self.lift(path))) } else { remove_file(path) }
        })?;
        self.remove_dir(dir).map(drop)
    }

    /// Removes an empty directory; returns `false` if another removal has put something there.
    fn remove_dir(&mut self, dir: &Path) -> io::Result<bool> {
        match absent_is_fine(fs::remove_dir(dir)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && self.surprises < SURPRISES_MAX => {
                self.surprises += 1;
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }

    fn lift(&mut self, dir: &Path) -> io::Result<()> {
        loop {
            let target: PathBuf = self.root.join(format!(".lifted-{}", self.count));
            self.count += 1;
            match renameat_with(CWD, dir, CWD, &target, RenameFlags::NOREPLACE) {
                // The guest may have used the name.
                Err(Errno::EXIST) => {}
                other => return other.map_err(io::Error::from),
            }
        }
    }
}

/// Calls `deed` with every entry of `dir` and whether it is a directory. A missing `dir` has no
/// entries.
fn for_each(dir: &Path, mut deed: impl FnMut(&Path, bool) -> io::Result<()>) -> io::Result<()> {
    absent_is_fine(fs::read_dir(dir).and_then(|mut entries| {
        entries.try_for_each(|entry| {
            let entry = entry?;
            deed(&entry.path(), entry.file_type()?.is_dir())
        })
    }))
}

fn remove_file(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_file(path))
}

fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Makes a directory accessible: without root, the modes that a guest sets apply to this process
/// too.
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
        // Built from the inside out: each level is moved into a new one.
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
    fn two_who_remove_the_same_tree_both_succeed() {
        let temp = tempfile::tempdir().unwrap();
        for round in 0..200 {
            let root = temp.path().join(format!("box-{round}"));
            for dir in ["a/b/c/d", "a/e/f", "g/h/i", "j"] {
                fs::create_dir_all(root.join(dir)).unwrap();
                fs::write(root.join(dir).join("file"), "").unwrap();
            }
            let start = std::sync::Barrier::new(2);
            let remove = || {
                start.wait();
                remove_tree(&root)
            };
            let outcomes = std::thread::scope(|scope| {
                let two = [scope.spawn(remove), scope.spawn(remove)];
                two.map(|one| one.join().unwrap())
            });
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?} in round {round}");
            assert!(!root.exists(), "round {round}");
        }
    }

    #[test]
    fn what_is_not_there_is_removed_already() {
        remove_tree(Path::new("/nowhere/at/all")).unwrap();
    }
}
