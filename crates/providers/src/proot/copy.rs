//! Copy of a tree of files as a box's own.
//!
//! The copy shares no file with its source, since a guest writes into it: it shares blocks where
//! the file system can, and has its own blocks elsewhere. The image store links files by content,
//! so a hard link there is not one of the image, and two names become two files. Those of a box are its
//! own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use erofs::{LargeTurn, SMALL_BYTES};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    fchmod, fchown, fgetxattr, flistxattr, fsetxattr, futimens, linkat, mkdirat, mknodat, openat, openat2, readlinkat,
    statat, symlinkat, utimensat,
};
use rustix::io::Errno;

use crate::local::file_copy::{clone, copy_content};
use crate::local::snapshots::Unfit;

/// Paths of the tree that are not copied, since the box gets generated ones.
const MADE_UP: [&str; 4] = ["dev", "proc", "sys", ".tidebox"];
/// Most entries of a tree, more than the image store takes.
const ENTRIES_MAX: usize = 5_000_000;
/// Most memory for the paths that are kept, those of all directories and of files with several names, in bytes.
const PATHS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Memory of a path beside its text, with what its place needs to grow.
const PATH_BYTES: usize = 128;
/// Bytes of all names of a file's attributes, and of one value: the most that the kernel takes.
const ATTRIBUTES_BYTES_MAX: usize = 64 * 1024;

/// Copies everything below `from` into the empty directory `to`, for the user `id`; `None` for
/// the caller. The content of the directories `shown`, which the box gets from elsewhere, is left
/// out. Blocks.
///
/// Owners can read and write their directories and files, as the root of the tree could, which
/// the owner stands for. Devices, sockets and extended attributes are left out.
pub(super) fn copy_tree(from: &Path, to: &Path, shown: &[&str], id: Option<u32>) -> io::Result<()> {
    copy(from, to, shown, id, None, PATHS_BYTES_MAX)
}

/// Copies the files of a box like [`copy_tree`], also those that are shown to it, with hard links and the
/// attributes that programs set.
pub(super) fn copy_box(from: &Path, to: &Path, id: Option<u32>) -> io::Result<()> {
    copy(from, to, &[], id, Some(RefCell::default()), PATHS_BYTES_MAX)
}

fn copy(
    from: &Path,
    to: &Path,
    shown: &[&str],
    id: Option<u32>,
    linked: Option<RefCell<Linked>>,
    memory: usize,
) -> io::Result<()> {
    let open = |path: &Path| rustix::fs::openat(CWD, path, DIR, Mode::empty());
    let copier =
        Copier { from: open(from)?, to: open(to)?, id, linked, memory: Cell::new(memory), turn: RefCell::default() };
    let mut waiting = vec![PathBuf::new()];
    let mut entries = 0;
    // Times of directories are set last, since each new entry changes them.
    let mut times = Vec::new();
    let mut reflinks = true;
    while let Some(path) = waiting.pop() {
        let Some(source) = present(&path, below(&copier.from, &path).map_err(readable(&path)))? else { continue };
        let target = below(&copier.to, &path)?;
        for entry in Dir::read_from(&source)? {
            let entry = entry?;
            let name = entry.file_name();
            let bytes = name.to_bytes();
            let below = path.join(std::ffi::OsStr::from_bytes(bytes));
            if bytes == b"." || bytes == b".." || MADE_UP.iter().any(|made_up| below == Path::new(made_up)) {
                continue;
            }
            entries += 1;
            if entries > ENTRIES_MAX {
                return Err(Unfit::because(format!("there are more than {ENTRIES_MAX} files")));
            }
            let stat = statat(&source, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from);
            let Some(stat) = present(&below, stat.map_err(readable(&path)))? else { continue };
            let name = Path::new(std::ffi::OsStr::from_bytes(bytes));
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    copier.keep(&below)?;
                    copier.dir(&source, &target, name, &stat, &below)?;
                    if !shown.iter().any(|shown| below == Path::new(shown)) {
                        waiting.push(below.clone());
                    }
                    times.push((below, times_of(&stat)));
                }
                FileType::RegularFile => {
                    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let from = openat(&source, name, flags, Mode::empty()).map_err(io::Error::from);
                    let Some(from) = present(&below, from.map_err(readable(&below)))? else { continue };
                    // After the file was opened: the first of its names must be one of the copy.
                    if !copier.link_again(&target, &below, &stat)? {
                        copier.file(from, &target, name, &stat, &mut reflinks)?;
                    }
                }
                FileType::Symlink => {
                    let leads_to = readlinkat(&source, name, Vec::new()).map_err(io::Error::from);
                    let Some(leads_to) = present(&below, leads_to)? else { continue };
                    copier.link(&leads_to, &target, name, &stat)?;
                }
                FileType::Fifo => copier.fifo(&target, name, &stat)?,
                FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {}
            }
        }
    }
    for (path, times) in times.into_iter().rev() {
        futimens(below(&copier.to, &path)?, &times)?;
    }
    Ok(())
}

/// Returns what was found of the source at `path`; `None` if it was removed, or replaced by something of another
/// kind, after it was listed. The copy is then made without it: packages of the host come and go.
fn present<T>(path: &Path, found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if has_vanished(&error) => {
            tracing::info!(path = %path.display(), "a file vanished while it was copied; the copy is made without it");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn has_vanished(error: &io::Error) -> bool {
    [Some(Errno::NOENT), Some(Errno::NOTDIR), Some(Errno::LOOP)].contains(&Errno::from_io_error(error))
}

/// Returns the error for a file that its owner may not read. Only a server that runs as root reads it all the same.
fn readable(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return error;
        }
        Unfit::because(format!("/{} cannot be read by its owner; give it `chmod u+rX`", path.display()))
    }
}

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory of a tree without following a link.
fn below(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(root, path, DIR, Mode::empty(), resolve).map_err(|errno| match errno {
        Errno::NAMETOOLONG => Unfit::because("there are paths longer than 4,096 bytes"),
        errno => errno.into(),
    })
}

fn times_of(stat: &Stat) -> Timestamps {
    let at = |tv_sec, tv_nsec: u64| Timespec { tv_sec, tv_nsec: i64::try_from(tv_nsec).unwrap_or(0) };
    Timestamps {
        last_access: at(stat.st_atime, stat.st_atime_nsec),
        last_modification: at(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// First names of files that have several, by device and number.
type Linked = HashMap<(u64, u64), PathBuf>;

struct Copier {
    from: OwnedFd,
    to: OwnedFd,
    id: Option<u32>,
    /// With these, hard links are links of the copy, and attributes of programs are copied.
    linked: Option<RefCell<Linked>>,
    /// Bytes that may still be taken for paths.
    memory: Cell<usize>,
    /// Turn to take much memory, once it is needed.
    turn: RefCell<Option<LargeTurn>>,
}

impl Copier {
    fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        (self.id.map(Uid::from_raw), self.id.map(Gid::from_raw))
    }

    /// Takes the memory of a path that is kept, twice: a list grows by as much as it has.
    fn keep(&self, path: &Path) -> io::Result<()> {
        let left = self.memory.get().checked_sub(2 * (path.as_os_str().len() + PATH_BYTES));
        let left = left.ok_or_else(|| {
            Unfit::because("the paths of all directories, and of files with several names, take more than 128 MiB")
        })?;
        self.memory.set(left);
        if left + SMALL_BYTES < PATHS_BYTES_MAX && self.turn.borrow().is_none() {
            self.turn.replace(Some(LargeTurn::wait()?));
        }
        Ok(())
    }

    fn dir(&self, source: &OwnedFd, target: &OwnedFd, name: &Path, stat: &Stat, path: &Path) -> io::Result<()> {
        mkdirat(target, name, Mode::RWXU)?;
        let to = openat(target, name, DIR, Mode::empty())?;
        if self.linked.is_some() {
            let from = openat(source, name, DIR, Mode::empty()).map_err(io::Error::from);
            if let Some(from) = present(path, from.map_err(readable(path)))? {
                copy_attributes(&from, &to)?;
            }
        }
        self.settle(&to, stat, 0o700)
    }

    /// Makes the file at `path` another name of one that was copied before. Returns whether it is one.
    fn link_again(&self, target: &OwnedFd, path: &Path, stat: &Stat) -> io::Result<bool> {
        let Some(linked) = self.linked.as_ref().filter(|_| stat.st_nlink > 1) else { return Ok(false) };
        let key = (stat.st_dev, stat.st_ino);
        if let Some(first) = linked.borrow().get(&key) {
            let dir = below(&self.to, first.parent().unwrap_or(Path::new("")))?;
            let (old, new) = (first.file_name().unwrap_or_default(), path.file_name().unwrap_or_default());
            linkat(dir, old, target, new, AtFlags::empty())?;
            return Ok(true);
        }
        self.keep(path)?;
        linked.borrow_mut().insert(key, path.to_owned());
        Ok(false)
    }

    fn file(&self, from: OwnedFd, target: &OwnedFd, name: &Path, stat: &Stat, reflinks: &mut bool) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(target, name, flags, Mode::RUSR | Mode::WUSR)?;
        if self.linked.is_some() {
            copy_attributes(&from, &to)?;
        }
        if stat.st_size > 0 && !(*reflinks && clone(&to, &from, reflinks)) {
            copy_content(from, &to, u64::try_from(stat.st_size).unwrap_or(0))?;
        }
        self.settle(&to, stat, 0o600)?;
        Ok(futimens(&to, &times_of(stat))?)
    }

    fn link(&self, leads_to: &CStr, target: &OwnedFd, name: &Path, stat: &Stat) -> io::Result<()> {
        symlinkat(leads_to, target, name)?;
        let (uid, gid) = self.owner();
        chownat(target, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(utimensat(target, name, &times_of(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn fifo(&self, target: &OwnedFd, name: &Path, stat: &Stat) -> io::Result<()> {
        mknodat(target, name, FileType::Fifo, Mode::from_raw_mode(stat.st_mode & 0o777), 0)?;
        let (uid, gid) = self.owner();
        Ok(chownat(target, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets owner and mode; the owner first, since a change of it clears mode bits.
    fn settle(&self, file: &OwnedFd, stat: &Stat, at_least: u32) -> io::Result<()> {
        let (uid, gid) = self.owner();
        if uid.is_some() {
            fchown(file, uid, gid)?;
        }
        Ok(fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777 | at_least))?)
    }
}

/// Copies the attributes that programs without privileges set, where both file systems have them.
fn copy_attributes(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let mut names = vec![0; ATTRIBUTES_BYTES_MAX];
    let count = match flistxattr(from, names.as_mut_slice()) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
        listed => listed?,
    };
    let mut value = vec![0; ATTRIBUTES_BYTES_MAX];
    for name in names[..count].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let size = fgetxattr(from, name, value.as_mut_slice())?;
        match fsetxattr(to, name, &value[..size], XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => return Ok(()),
            set => set?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn copied(from: &Path) -> tempfile::TempDir {
        let to = tempfile::tempdir().unwrap();
        copy_tree(from, to.path(), &["shown"], None).unwrap();
        to
    }

    #[test]
    fn content_links_modes_and_times_are_the_same() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir_all(from.path().join("a/b")).unwrap();
        fs::write(from.path().join("a/b/file"), vec![7; 3_000_000]).unwrap();
        fs::set_permissions(from.path().join("a/b/file"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("/etc/passwd", from.path().join("a/link")).unwrap();
        symlink("nowhere", from.path().join("dangling")).unwrap();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"odd\xff\nname"));
        fs::write(from.path().join(odd), "odd").unwrap();
        let to = copied(from.path());
        let (old, new) = (from.path().join("a/b/file"), to.path().join("a/b/file"));
        assert_eq!(fs::read(&old).unwrap(), fs::read(&new).unwrap());
        let (old, new) = (fs::metadata(old).unwrap(), fs::metadata(new).unwrap());
        assert_eq!((old.mode(), old.mtime(), old.mtime_nsec()), (new.mode(), new.mtime(), new.mtime_nsec()));
        let (old, new) = (from.path().join("a/b").metadata().unwrap(), to.path().join("a/b").metadata().unwrap());
        assert_eq!((old.mtime(), old.mtime_nsec()), (new.mtime(), new.mtime_nsec()));
        assert_eq!(fs::read_link(to.path().join("a/link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(fs::read_link(to.path().join("dangling")).unwrap(), Path::new("nowhere"));
        assert_eq!(fs::read(to.path().join(odd)).unwrap(), b"odd");
    }

    #[test]
    fn no_file_is_shared_with_the_original_or_with_another_name() {
        let from = tempfile::tempdir().unwrap();
        fs::write(from.path().join("one"), "same").unwrap();
        fs::hard_link(from.path().join("one"), from.path().join("two")).unwrap();
        let to = copied(from.path());
        fs::write(to.path().join("one"), "changed").unwrap();
        assert_eq!(fs::read(to.path().join("two")).unwrap(), b"same");
        assert_eq!(fs::read(from.path().join("one")).unwrap(), b"same");
    }

    #[test]
    fn the_names_of_one_file_of_a_box_stay_names_of_one_file() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir(from.path().join("dir")).unwrap();
        fs::write(from.path().join("dir/one"), "same").unwrap();
        for other in ["two", "dir/three"] {
            fs::hard_link(from.path().join("dir/one"), from.path().join(other)).unwrap();
        }
        fs::write(from.path().join("other"), "same").unwrap();
        let to = tempfile::tempdir().unwrap();
        copy_box(from.path(), to.path(), None).unwrap();
        fs::write(to.path().join("two"), "changed").unwrap();
        for (name, content) in [("dir/one", "changed"), ("dir/three", "changed"), ("other", "same")] {
            assert_eq!(fs::read_to_string(to.path().join(name)).unwrap(), content, "{name}");
        }
        assert_eq!(fs::metadata(to.path().join("dir/one")).unwrap().nlink(), 3);
        assert_eq!(fs::read(from.path().join("two")).unwrap(), b"same");
    }

    #[test]
    fn attributes_of_programs_are_those_of_the_copy_of_a_box() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir(from.path().join("dir")).unwrap();
        fs::write(from.path().join("file"), "x").unwrap();
        let to = tempfile::tempdir().unwrap();
        let attributed = ["dir", "file"].map(|name| {
            let opened = File::open(from.path().join(name)).unwrap();
            fsetxattr(&opened, "user.note", b"kept", XattrFlags::empty())
        });
        if attributed.contains(&Err(Errno::OPNOTSUPP)) {
            return;
        }
        copy_box(from.path(), to.path(), None).unwrap();
        for name in ["dir", "file"] {
            let mut value = [0; 8];
            let size = fgetxattr(File::open(to.path().join(name)).unwrap(), "user.note", &mut value[..]).unwrap();
            assert_eq!(&value[..size], b"kept", "{name}");
        }
    }

    #[test]
    fn holes_stay_holes() {
        let from = tempfile::tempdir().unwrap();
        let file = File::create(from.path().join("sparse")).unwrap();
        file.set_len(1 << 40).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"in the middle", 1 << 39).unwrap();
        let to = copied(from.path());
        let copy = File::open(to.path().join("sparse")).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 1 << 40);
        assert!(copy.metadata().unwrap().blocks() < 1000);
        let mut found = [0; 13];
        std::os::unix::fs::FileExt::read_exact_at(&copy, &mut found, 1 << 39).unwrap();
        assert_eq!(&found, b"in the middle");
    }

    #[test]
    fn what_its_owner_could_not_use_he_can() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir(from.path().join("closed")).unwrap();
        fs::write(from.path().join("closed/file"), "x").unwrap();
        fs::set_permissions(from.path().join("closed/file"), fs::Permissions::from_mode(0o444)).unwrap();
        fs::set_permissions(from.path().join("closed"), fs::Permissions::from_mode(0o555)).unwrap();
        let to = copied(from.path());
        assert_eq!(to.path().join("closed").metadata().unwrap().mode() & 0o7777, 0o755);
        assert_eq!(to.path().join("closed/file").metadata().unwrap().mode() & 0o7777, 0o644);
    }

    #[test]
    fn memory_for_the_paths_of_directories_and_of_links_is_bounded() {
        let from = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            fs::create_dir(from.path().join(name)).unwrap();
            fs::write(from.path().join(name).join("file"), "").unwrap();
        }
        fs::hard_link(from.path().join("one/file"), from.path().join("one/twin")).unwrap();
        let copied = |memory| {
            let to = tempfile::tempdir().unwrap();
            copy(from.path(), to.path(), &[], None, Some(RefCell::default()), memory)
        };
        // Two directories and a name of a file.
        let all = 2 * (3 * PATH_BYTES + "one/twinonetwo".len());
        copied(all).unwrap();
        let refused = copied(all - 1).unwrap_err();
        assert!(refused.get_ref().is_some_and(|cause| cause.is::<Unfit>()), "{refused:?}");
    }

    #[test]
    fn a_file_that_its_owner_cannot_read_is_named_to_a_server_without_privileges() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir(from.path().join("dir")).unwrap();
        fs::write(from.path().join("dir/secret"), "x").unwrap();
        fs::set_permissions(from.path().join("dir/secret"), fs::Permissions::from_mode(0o200)).unwrap();
        let to = tempfile::tempdir().unwrap();
        let copied = copy_box(from.path(), to.path(), None);
        if rustix::process::geteuid().is_root() {
            return copied.unwrap();
        }
        let refused = copied.unwrap_err();
        assert!(refused.get_ref().is_some_and(|cause| cause.is::<Unfit>()), "{refused:?}");
        assert_eq!(refused.to_string(), "/dir/secret cannot be read by its owner; give it `chmod u+rX`");
    }

    #[test]
    fn files_that_vanish_while_they_are_copied_are_left_out() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let from = tempfile::tempdir().unwrap();
        let dir = from.path().join("dir");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("kept"), "kept").unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // As a package manager does: new names, then the old ones, of each kind.
                while !is_done.load(Ordering::Relaxed) {
                    for number in 0..100 {
                        fs::write(dir.join(format!("{number}.new")), "new").unwrap();
                        symlink("nowhere", dir.join(format!("{number}.link"))).unwrap();
                        fs::create_dir(dir.join(format!("{number}.dir"))).unwrap();
                    }
                    for number in 0..100 {
                        fs::rename(dir.join(format!("{number}.new")), dir.join("kept.other")).unwrap();
                        fs::remove_file(dir.join(format!("{number}.link"))).unwrap();
                        fs::remove_dir(dir.join(format!("{number}.dir"))).unwrap();
                    }
                }
            });
            let outcomes: Vec<_> = (0..50)
                .map(|_| {
                    let to = tempfile::tempdir().unwrap();
                    copy_tree(from.path(), to.path(), &[], None)?;
                    copy_box(from.path(), tempfile::tempdir().unwrap().path(), None)?;
                    fs::read_to_string(to.path().join("dir/kept"))
                })
                .collect();
            is_done.store(true, Ordering::Relaxed);
            for outcome in outcomes {
                assert_eq!(outcome.unwrap(), "kept");
            }
        });
    }

    #[test]
    fn what_a_box_gets_made_up_is_left_out() {
        let from = tempfile::tempdir().unwrap();
        symlink("/etc", from.path().join("dev")).unwrap();
        symlink("/etc", from.path().join(".tidebox")).unwrap();
        fs::create_dir_all(from.path().join("proc/x")).unwrap();
        fs::create_dir_all(from.path().join("usr/dev")).unwrap();
        fs::create_dir_all(from.path().join("shown/by another")).unwrap();
        let to = copied(from.path());
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 2);
        assert_eq!(fs::read_dir(to.path().join("shown")).unwrap().count(), 0);
        assert!(to.path().join("usr/dev").is_dir());
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_refused_with_a_reason() {
        let from = tempfile::tempdir().unwrap();
        let top = from.path().join("top");
        let (inner, outer) = (from.path().join("inner"), from.path().join("outer"));
        fs::create_dir(&inner).unwrap();
        for _ in 0..3000 {
            fs::create_dir(&outer).unwrap();
            fs::rename(&inner, outer.join("d")).unwrap();
            fs::rename(&outer, &inner).unwrap();
        }
        fs::rename(&inner, &top).unwrap();
        let to = tempfile::tempdir().unwrap();
        let refused = copy_tree(from.path(), to.path(), &[], None).unwrap_err();
        assert!(refused.to_string().contains("longer than 4,096 bytes"), "{refused}");
        host_disk::remove_tree(from.path()).unwrap();
        host_disk::remove_tree(to.path()).unwrap();
    }
}
