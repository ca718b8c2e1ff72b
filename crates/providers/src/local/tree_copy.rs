//! Copies of trees of files.
//!
//! A copy shares no file with its source, because a guest writes into the copy: it shares blocks where
//! the file system can, and has its own blocks elsewhere. The image store links files by content, so
//! two names of one file there become two files. Hard links of a box stay hard links.

#[cfg(test)]
mod test;

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use erofs::{LargeTurn, SMALL_BYTES};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, futimens, linkat, mkdirat, mknodat, openat, openat2,
    readlinkat, statat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::file_copy::{clone, copy_content};
use super::snapshots::Unfit;

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
/// Device number of the mark that an overlay leaves of a removed file.
const WHITEOUT: u64 = 0;

/// Differences between the kinds of trees that are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind<'a> {
    /// Files of an image or of the host. The content of the directories `shown` is left out.
    Image { shown: &'a [&'a str] },
    /// All files of a box that runs without an overlay.
    Box,
    /// Upper layer of an overlay, shown to its box at `at`.
    Layer { at: &'a Path },
}

impl Kind<'_> {
    /// Returns whether the box gets what is at `path` from elsewhere.
    fn is_made_up(self, path: &Path) -> bool {
        !self.is_layer() && MADE_UP.iter().any(|made_up| path == Path::new(made_up))
    }

    fn is_shown(self, path: &Path) -> bool {
        matches!(self, Kind::Image { shown } if shown.iter().any(|shown| path == Path::new(shown)))
    }

    /// Returns whether the tree has hard links and attributes of its box.
    fn is_of_box(self) -> bool {
        !matches!(self, Kind::Image { .. })
    }

    fn is_layer(self) -> bool {
        matches!(self, Kind::Layer { .. })
    }

    fn copies_attribute(self, name: &[u8]) -> bool {
        name.starts_with(b"user.") || self.is_layer() && name.starts_with(b"system.posix_acl_")
    }

    /// Returns the error for a file that its owner may not read, by the path that the box knows. Only a
    /// server that runs as root reads it all the same.
    fn readable(self, path: &Path) -> impl Fn(io::Error) -> io::Error {
        let root = if let Kind::Layer { at } = self { at } else { Path::new("/") };
        let path = root.join(path);
        move |error| {
            if error.kind() != io::ErrorKind::PermissionDenied {
                return error;
            }
            Unfit::because(format!("{} cannot be read by its owner; run `chmod u+rX` on it", path.display()))
        }
    }
}

/// Copies everything below `from` into the empty directory `to`, for the user `id`; `None` for
/// the caller. The content of the directories `shown`, which the box gets from elsewhere, is left
/// out. Blocks.
///
/// Owners can read and write their directories and files, as the root of the tree could, which
/// the owner stands for. Devices, sockets and extended attributes are left out.
pub(crate) fn copy_tree(from: &Path, to: &Path, shown: &[&str], id: Option<u32>) -> io::Result<()> {
    copy(from, to, Kind::Image { shown }, id, PATHS_BYTES_MAX)
}

/// Copies the files of a box like [`copy_tree`], also those that are shown to it, with hard links and the
/// attributes that programs set.
pub(crate) fn copy_box(from: &Path, to: &Path, id: Option<u32>) -> io::Result<()> {
    copy(from, to, Kind::Box, id, PATHS_BYTES_MAX)
}

/// Copies the upper layer of an overlay, which its box sees at `at`, into the empty directory `to`. Blocks.
///
/// Modes stay as they are, and the marks of removed files and of replaced directories are copied: the
/// overlay of another box takes the copy as its upper layer. It must be mounted with `userxattr`.
pub(crate) fn copy_layer(from: &Path, to: &Path, at: &Path) -> io::Result<()> {
    copy(from, to, Kind::Layer { at }, None, PATHS_BYTES_MAX)
}

fn copy(from: &Path, to: &Path, kind: Kind<'_>, id: Option<u32>, memory: usize) -> io::Result<()> {
    let mut copier = Copier {
        from: openat(CWD, from, DIR, Mode::empty())?,
        to: openat(CWD, to, DIR, Mode::empty())?,
        kind,
        id,
        linked: HashMap::new(),
        reflinks: true,
        memory,
        turn: None,
    };
    let mut waiting = vec![PathBuf::new()];
    let mut entries = 0;
    // Completed last: each new entry changes the times of its directory, and the mode may forbid entries.
    let mut dirs = Vec::new();
    if kind.is_layer() {
        copy_attributes(&copier.from, &copier.to, kind)?;
        dirs.push((PathBuf::new(), fstat(&copier.from)?));
    }
    while let Some(path) = waiting.pop() {
        let opened = below(&copier.from, &path).map_err(kind.readable(&path));
        let Some(source) = present(&path, opened)? else { continue };
        let target = below(&copier.to, &path)?;
        for entry in Dir::read_from(&source)? {
            let entry = entry?;
            let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
            let path = path.join(name);
            if name == Path::new(".") || name == Path::new("..") || kind.is_made_up(&path) {
                continue;
            }
            entries += 1;
            if entries > ENTRIES_MAX {
                return Err(Unfit::because(format!("there are more than {ENTRIES_MAX} files")));
            }
            let stat = statat(&source, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from);
            let Some(stat) = present(&path, stat.map_err(kind.readable(&path)))? else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                copier.dir(&source, &target, name, &stat, &path)?;
                if !kind.is_shown(&path) {
                    waiting.push(path.clone());
                }
                dirs.push((path, stat));
            } else {
                copier.file(&source, &target, name, &stat, &path)?;
            }
        }
    }
    for (path, stat) in dirs.into_iter().rev() {
        copier.finish_dir(&path, &stat)?;
    }
    Ok(())
}

/// Returns what was found of the source at `path`; `None` if it was removed, or replaced by something of another
/// kind, after it was listed. The copy is then made without it: packages of the host come and go.
fn present<T>(path: &Path, found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if has_vanished(&error) => {
            tracing::info!(path = %path.display(), "a file vanished while it was copied; skipping it");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn has_vanished(error: &io::Error) -> bool {
    [Some(Errno::NOENT), Some(Errno::NOTDIR), Some(Errno::LOOP)].contains(&Errno::from_io_error(error))
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
    Timestamps {
        last_access: timespec(stat.st_atime, stat.st_atime_nsec),
        last_modification: timespec(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn timespec(tv_sec: i64, tv_nsec: u64) -> Timespec {
    Timespec { tv_sec, tv_nsec: i64::try_from(tv_nsec).unwrap_or(0) }
}

/// First names of files that have several, by device and number.
type Linked = HashMap<(u64, u64), PathBuf>;

struct Copier<'a> {
    from: OwnedFd,
    to: OwnedFd,
    kind: Kind<'a>,
    id: Option<u32>,
    linked: Linked,
    /// False once a file could not share its blocks.
    reflinks: bool,
    /// Bytes that may still be taken for paths.
    memory: usize,
    /// Turn to take much memory, once it is needed.
    turn: Option<LargeTurn>,
}

impl Copier<'_> {
    fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        (self.id.map(Uid::from_raw), self.id.map(Gid::from_raw))
    }

    /// Takes the memory of a path that is kept, twice: a list grows by as much as it has.
    fn keep(&mut self, path: &Path) -> io::Result<()> {
        let left = self.memory.checked_sub(2 * (path.as_os_str().len() + PATH_BYTES));
        self.memory = left.ok_or_else(|| {
            Unfit::because("the paths of all directories, and of files with several names, take more than 128 MiB")
        })?;
        if self.memory + SMALL_BYTES < PATHS_BYTES_MAX && self.turn.is_none() {
            self.turn = Some(LargeTurn::wait()?);
        }
        Ok(())
    }

    fn dir(&mut self, source: &OwnedFd, target: &OwnedFd, name: &Path, stat: &Stat, path: &Path) -> io::Result<()> {
        self.keep(path)?;
        mkdirat(target, name, Mode::RWXU)?;
        let to = openat(target, name, DIR, Mode::empty())?;
        if self.kind.is_of_box() {
            let from = openat(source, name, DIR, Mode::empty()).map_err(io::Error::from);
            if let Some(from) = present(path, from.map_err(self.kind.readable(path)))? {
                copy_attributes(&from, &to, self.kind)?;
            }
        }
        if self.kind.is_layer() { Ok(()) } else { self.settle(&to, stat, 0o700) }
    }

    /// Completes a directory of the copy whose entries are there.
    fn finish_dir(&self, path: &Path, stat: &Stat) -> io::Result<()> {
        let dir = below(&self.to, path)?;
        if self.kind.is_layer() {
            self.settle(&dir, stat, 0)?;
        }
        Ok(futimens(dir, &times_of(stat))?)
    }

    /// Copies what is no directory, if it is of a kind that the copy has.
    fn file(&mut self, source: &OwnedFd, target: &OwnedFd, name: &Path, stat: &Stat, path: &Path) -> io::Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let from = openat(source, name, flags, Mode::empty()).map_err(io::Error::from);
                let Some(from) = present(path, from.map_err(self.kind.readable(path)))? else { return Ok(()) };
                // After the file was opened: the first of its names must be one of the copy.
                if self.link_again(target, path, stat)? { Ok(()) } else { self.content(from, target, name, stat) }
            }
            FileType::Symlink => {
                let leads_to = readlinkat(source, name, Vec::new()).map_err(io::Error::from);
                present(path, leads_to)?.map_or(Ok(()), |leads_to| self.link(&leads_to, target, name, stat))
            }
            FileType::Fifo => self.special(FileType::Fifo, target, name, stat),
            FileType::Socket if self.kind.is_layer() => self.special(FileType::Socket, target, name, stat),
            FileType::CharacterDevice if self.kind.is_layer() && stat.st_rdev == WHITEOUT => {
                self.special(FileType::CharacterDevice, target, name, stat)
            }
            FileType::Directory
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(()),
        }
    }

    /// Makes the file at `path` another name of one that was copied before. Returns whether it is one.
    fn link_again(&mut self, target: &OwnedFd, path: &Path, stat: &Stat) -> io::Result<bool> {
        if !self.kind.is_of_box() || stat.st_nlink <= 1 {
            return Ok(false);
        }
        let key = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.linked.get(&key) {
            let dir = below(&self.to, first.parent().unwrap_or(Path::new("")))?;
            let old = first.file_name().unwrap_or_default();
            let new = path.file_name().unwrap_or_default();
            linkat(dir, old, target, new, AtFlags::empty())?;
            return Ok(true);
        }
        self.keep(path)?;
        self.linked.insert(key, path.to_owned());
        Ok(false)
    }

    fn content(&mut self, from: OwnedFd, target: &OwnedFd, name: &Path, stat: &Stat) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(target, name, flags, Mode::RUSR | Mode::WUSR)?;
        if self.kind.is_of_box() {
            copy_attributes(&from, &to, self.kind)?;
        }
        if stat.st_size > 0 && !(self.reflinks && clone(&to, &from, &mut self.reflinks)) {
            copy_content(from, &to, u64::try_from(stat.st_size).unwrap_or(0))?;
        }
        self.settle(&to, stat, if self.kind.is_layer() { 0 } else { 0o600 })?;
        Ok(futimens(&to, &times_of(stat))?)
    }

    fn link(&self, leads_to: &CStr, target: &OwnedFd, name: &Path, stat: &Stat) -> io::Result<()> {
        symlinkat(leads_to, target, name)?;
        let (uid, gid) = self.owner();
        chownat(target, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(utimensat(target, name, &times_of(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Makes a file without content: a pipe, a socket, or the mark of a removed file.
    fn special(&self, kind: FileType, target: &OwnedFd, name: &Path, stat: &Stat) -> io::Result<()> {
        mknodat(target, name, kind, Mode::from_raw_mode(stat.st_mode & 0o777), 0)?;
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

/// Copies the attributes that programs without privileges set, where both file systems have them. Those of
/// a layer are also the marks of its overlay, and the access lists of its files.
fn copy_attributes(from: &OwnedFd, to: &OwnedFd, kind: Kind<'_>) -> io::Result<()> {
    let mut names = vec![0; ATTRIBUTES_BYTES_MAX];
    let count = match flistxattr(from, names.as_mut_slice()) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
        listed => listed?,
    };
    let mut value = vec![0; ATTRIBUTES_BYTES_MAX];
    for name in names[..count].split(|byte| *byte == 0).filter(|name| kind.copies_attribute(name)) {
        let size = fgetxattr(from, name, value.as_mut_slice())?;
        match fsetxattr(to, name, &value[..size], XattrFlags::empty()) {
            // A file system without attributes of programs can hold no layer.
            Err(Errno::OPNOTSUPP) if !kind.is_layer() => return Ok(()),
            set => set?,
        }
    }
    Ok(())
}
