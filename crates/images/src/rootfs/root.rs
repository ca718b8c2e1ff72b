//! Root directory that an image is unpacked into, and path resolution in it.
//!
//! Every operation is relative to a descriptor of a directory known to lie inside: the kernel
//! resolves the path there as if the root were `/`, and the last name of a path only goes to
//! calls that do not follow it. No other user may enter the folder, so nothing changes between
//! two calls.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat,
    futimens, mkdirat, openat, openat2, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::stream::Budget;
use crate::error::{Error, Result, refuse};

/// Longest path inside an image, in bytes, with links resolved: a program that copies a tree by
/// its paths puts a prefix before them, and Linux allows 4,096 bytes.
const PATH_MAX: usize = 3_500;
/// Most links in one path, as in the kernel.
const LINKS_MAX: u32 = 40;
/// Flags to open a directory for work in it; a link in its place is refused.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// Record of a directory in the root, kept by its inode.
#[derive(Debug, Clone, Copy)]
struct Known {
    parent: u64,
    /// Length of its path from the root, in bytes.
    length: usize,
    /// Last layer with an entry for it or for anything below it.
    layer: u32,
    /// Mode for the end, because the server could not work in the directory with it.
    strict: Option<u32>,
}

/// Directory being worked in.
#[derive(Debug)]
pub(super) struct Here {
    /// Path as a layer names it.
    path: Vec<u8>,
    pub(super) fd: OwnedFd,
    pub(super) ino: u64,
    /// Modification time to restore on leaving: a change inside is no change of the directory.
    mtime: Timespec,
}

/// Root directory that an image is unpacked into.
#[derive(Debug)]
pub(super) struct Root<'a> {
    fd: OwnedFd,
    ino: u64,
    here: Option<Here>,
    known: HashMap<u64, Known>,
    /// Files of the current layer, as hashes of their directory and name.
    fresh: HashSet<u64>,
    /// Directories without any content of lower layers, by inode: files added to them in this
    /// layer belong to this layer.
    hidden: HashSet<u64>,
    hasher: RandomState,
    layer: u32,
    /// Budget of the image, in which directories that no layer names count too.
    budget: &'a Budget,
    /// Folder for replaced directories, removed together with them.
    trash: PathBuf,
    trashed: u64,
}

impl<'a> Root<'a> {
    /// Opens `path`, an empty directory; directories to be removed are moved to `trash`.
    pub(super) fn open(path: &Path, trash: &Path, budget: &'a Budget) -> Result<Self> {
        let fd = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(disk)?;
        let ino = fstat(&fd).map_err(disk)?.st_ino;
        let mut known = HashMap::new();
        known.insert(ino, Known { parent: ino, length: 0, layer: 0, strict: None });
        Ok(Root {
            fd,
            ino,
            here: None,
            known,
            fresh: HashSet::new(),
            hidden: HashSet::new(),
            hasher: RandomState::new(),
            layer: 0,
            budget,
            trash: trash.to_owned(),
            trashed: 0,
        })
    }

    /// Starts the next layer: what exists now counts as part of lower layers.
    pub(super) fn next_layer(&mut self) -> Result<()> {
        self.leave()?;
        self.layer += 1;
        self.fresh = HashSet::new();
        self.hidden = HashSet::new();
        Ok(())
    }

    /// Enters the directory `path`, as a layer names it; missing directories are made.
    pub(super) fn enter(&mut self, path: &[u8]) -> Result<&Here> {
        if self.here.as_ref().is_none_or(|here| here.path != path) {
            self.leave()?;
            let fd = match self.resolve(path)? {
                Some(fd) => fd,
                None => self.walk(path, true)?.ok_or_else(|| refuse("its directory is missing"))?,
            };
            self.here = Some(Here::new(path.to_vec(), fd)?);
        }
        self.here.as_ref().ok_or_else(|| Error::failed("unpack a layer", "no directory"))
    }

    /// Enters the directory `path` if it exists.
    pub(super) fn enter_existing(&mut self, path: &[u8]) -> Result<Option<&Here>> {
        if self.here.as_ref().is_none_or(|here| here.path != path) {
            self.leave()?;
            match self.existing(path)? {
                Some(fd) => self.here = Some(Here::new(path.to_vec(), fd)?),
                None => return Ok(None),
            }
        }
        Ok(self.here.as_ref())
    }

    /// Returns the directory `path` without making it; `None` if there is none.
    pub(super) fn existing(&mut self, path: &[u8]) -> Result<Option<OwnedFd>> {
        match self.resolve(path) {
            Ok(None) => self.walk(path, false),
            Ok(found) => Ok(found),
            // A file is in the way, so there is no such directory.
            Err(Error::Invalid(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Enters the directory `fd`, which `path` names.
    pub(super) fn stay(&mut self, path: Vec<u8>, fd: OwnedFd) -> Result<()> {
        self.leave()?;
        self.here = Some(Here::new(path, fd)?);
        Ok(())
    }

    /// Leaves the current directory and restores its modification time.
    pub(super) fn leave(&mut self) -> Result<()> {
        match self.here.take() {
            Some(here) => set_mtime(&here.fd, here.mtime),
            None => Ok(()),
        }
    }

    /// Opens the directory at `path` in one call. `None` if it is missing or has to be resolved
    /// step by step.
    fn resolve(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        if path.is_empty() {
            return openat(&self.fd, ".", DIRECTORY, Mode::empty()).map(Some).map_err(disk);
        }
        // Links are resolved step by step, where their steps are counted: forty links may stand
        // for a path of many thousand steps.
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        // Without NOFOLLOW, which would report a link at the end as a file.
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        for _ in 0..16 {
            match openat2(&self.fd, path, flags, Mode::empty(), how) {
                Ok(fd) => return Ok(Some(fd)),
                // A rename ran meanwhile, and the path has a `..`.
                Err(Errno::AGAIN) => {}
                // Old kernels, and containers that forbid the call.
                Err(Errno::NOENT | Errno::NOSYS | Errno::PERM | Errno::LOOP) => return Ok(None),
                Err(Errno::NOTDIR) => return Err(refuse("a file is where its directory should be")),
                Err(error) => return Err(disk(error)),
            }
        }
        Ok(None)
    }

    /// Resolves the directory at `path` step by step; with `make`, makes missing directories.
    fn walk(&mut self, path: &[u8], make: bool) -> Result<Option<OwnedFd>> {
        let mut way: VecDeque<Vec<u8>> = steps(path).collect();
        let mut links = 0;
        let mut at = openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(disk)?;
        while let Some(step) = way.pop_front() {
            self.budget.step()?;
            if step == b".." {
                // `..` does not leave the root.
                if fstat(&at).map_err(disk)?.st_ino != self.ino {
                    at = openat(&at, "..", DIRECTORY, Mode::empty()).map_err(disk)?;
                }
                continue;
            }
            match openat(&at, &step[..], DIRECTORY, Mode::empty()) {
                Ok(fd) => at = fd,
                Err(Errno::NOENT) if make => {
                    self.budget.entry()?;
                    at = self.make_directory(&at, &step, 0o755)?;
                }
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let target = match readlinkat(&at, &step[..], Vec::new()) {
                        Ok(target) => target.into_bytes(),
                        Err(Errno::INVAL) if make => return Err(refuse("a file is where its directory should be")),
                        Err(Errno::INVAL) => return Ok(None),
                        Err(error) => return Err(disk(error)),
                    };
                    links += 1;
                    if links > LINKS_MAX && !make {
                        return Ok(None);
                    }
                    if links > LINKS_MAX {
                        return Err(refuse("its path has a loop of symbolic links"));
                    }
                    if target.starts_with(b"/") {
                        at = openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(disk)?;
                    }
                    for step in steps(&target).collect::<Vec<_>>().into_iter().rev() {
                        way.push_front(step);
                    }
                }
                Err(error) => return Err(disk(error)),
            }
        }
        Ok(Some(at))
    }

    /// Makes a directory in another one of the root, and records it.
    pub(super) fn make_directory(&mut self, parent: &OwnedFd, name: &[u8], mode: u32) -> Result<OwnedFd> {
        let inside = fstat(parent).map_err(disk)?;
        let length = self.length_of(inside.st_ino, name)?;
        mkdirat(parent, name, Mode::from(0o700)).map_err(disk)?;
        let fd = openat(parent, name, DIRECTORY, Mode::empty()).map_err(disk)?;
        fchmod(&fd, Mode::from(mode)).map_err(disk)?;
        set_mtime(&fd, Timespec { tv_sec: 0, tv_nsec: 0 })?;
        // Making it does not count as a change of its parent.
        set_mtime(parent, mtime_of(&inside))?;
        // The inode may be that of a directory that was removed.
        let known = Known { parent: inside.st_ino, length, layer: 0, strict: None };
        self.known.insert(fstat(&fd).map_err(disk)?.st_ino, known);
        Ok(fd)
    }

    /// Checks the length of the path that an entry of the directory `parent` would have, and
    /// returns it.
    pub(super) fn length_of(&self, parent: u64, name: &[u8]) -> Result<usize> {
        let above = self.known.get(&parent).map_or(0, |known| known.length);
        let length = above + 1 + name.len();
        if name.len() > 255 || length > PATH_MAX {
            return Err(refuse(format!("its path is longer than {PATH_MAX} bytes, or a name in it longer than 255")));
        }
        Ok(length)
    }

    /// Keeps a mode of the directory for the end, or forgets the one that is kept.
    pub(super) fn keep_mode(&mut self, ino: u64, mode: Option<u32>) {
        if let Some(known) = self.known.get_mut(&ino) {
            known.strict = mode;
        }
    }

    /// Sets the modes that were kept for the end.
    pub(super) fn set_kept_modes(&self) -> Result<()> {
        if self.known.values().all(|known| known.strict.is_none()) {
            return Ok(());
        }
        self.each_directory(|fd, stat| match self.known.get(&stat.st_ino).and_then(|known| known.strict) {
            Some(mode) => fchmod(fd, Mode::from(mode)).map_err(disk),
            None => Ok(()),
        })
    }

    /// Counts the directory and all above it as part of the current layer.
    pub(super) fn touch_directory(&mut self, ino: u64) {
        let mut next = ino;
        while let Some(known) = self.known.get_mut(&next).filter(|known| known.layer != self.layer) {
            known.layer = self.layer;
            next = known.parent;
        }
    }

    /// Counts the file `name` in the directory `parent` as part of the current layer.
    pub(super) fn touch_file(&mut self, parent: u64, name: &[u8]) {
        self.fresh.insert(self.hasher.hash_one((parent, name)));
        self.touch_directory(parent);
    }

    /// Removes the entry `name` of a directory: a file, a link or a whole directory.
    pub(super) fn clear(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<()> {
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => self.discard(parent, name),
            // Some file systems report this for a directory.
            Err(Errno::PERM) if kind_of(parent, name)? == Some(FileType::Directory) => self.discard(parent, name),
            Err(error) => Err(disk(error)),
        }
    }

    /// Removes a directory. One that is not empty is moved to the trash as a whole.
    fn discard(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<()> {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(disk(error)),
        }
        let away = self.trash.join(self.trashed.to_string());
        self.trashed += 1;
        renameat(parent, name, CWD, &away).map_err(disk)
    }

    /// Removes the entry `name` of lower layers from the directory `parent`.
    pub(super) fn hide(&mut self, parent: &OwnedFd, parent_ino: u64, name: &[u8]) -> Result<()> {
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(disk(error)),
        };
        let ours = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            self.known.get(&stat.st_ino).is_some_and(|known| known.layer == self.layer)
        } else {
            self.fresh.contains(&self.hasher.hash_one((parent_ino, name)))
        };
        if !ours {
            return self.clear(parent, name);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(());
        }
        let fd = openat(parent, name, DIRECTORY, Mode::empty()).map_err(disk)?;
        self.hide_content(fd)
    }

    /// Removes the content of lower layers from the directory `top`, at any depth. Content of the
    /// current layer stays.
    pub(super) fn hide_content(&mut self, top: OwnedFd) -> Result<()> {
        // Paths instead of descriptors: there may be more levels than open files allowed.
        let mut todo: Vec<Vec<u8>> = vec![Vec::new()];
        while let Some(path) = todo.pop() {
            let fd = if path.is_empty() {
                openat(&top, ".", DIRECTORY, Mode::empty()).map_err(disk)?
            } else {
                open_real(&top, &path)?
            };
            let stat = fstat(&fd).map_err(disk)?;
            // Once is enough: a layer may hide the content of a directory any number of times.
            if !self.hidden.insert(stat.st_ino) {
                continue;
            }
            for (name, _) in entries(&fd)? {
                let found = statat(&fd, &name[..], AtFlags::SYMLINK_NOFOLLOW).map_err(disk)?;
                let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
                if is_directory && self.known.get(&found.st_ino).is_some_and(|known| known.layer == self.layer) {
                    todo.push(join(&path, &name));
                } else if is_directory || !self.fresh.contains(&self.hasher.hash_one((stat.st_ino, &name[..]))) {
                    self.clear(&fd, &name)?;
                }
            }
            set_mtime(&fd, mtime_of(&stat))?;
        }
        Ok(())
    }

    /// Calls `visit` with every directory, the deepest first.
    fn each_directory(&self, mut visit: impl FnMut(&OwnedFd, &Stat) -> Result<()>) -> Result<()> {
        let mut todo = vec![(Vec::new(), false)];
        while let Some((path, entered)) = todo.pop() {
            let fd = if path.is_empty() {
                openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(disk)?
            } else {
                open_real(&self.fd, &path)?
            };
            if entered {
                visit(&fd, &fstat(&fd).map_err(disk)?)?;
                continue;
            }
            todo.push((path.clone(), true));
            for (name, kind) in entries(&fd)? {
                let is_directory = match kind {
                    FileType::Unknown => kind_of(&fd, &name)? == Some(FileType::Directory),
                    FileType::Directory => true,
                    FileType::RegularFile
                    | FileType::Symlink
                    | FileType::Fifo
                    | FileType::Socket
                    | FileType::CharacterDevice
                    | FileType::BlockDevice => false,
                };
                if is_directory {
                    todo.push((join(&path, &name), false));
                }
            }
        }
        Ok(())
    }

    /// Returns a descriptor of the root itself.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

impl Here {
    fn new(path: Vec<u8>, fd: OwnedFd) -> Result<Self> {
        let stat = fstat(&fd).map_err(disk)?;
        Ok(Here { path, fd, ino: stat.st_ino, mtime: mtime_of(&stat) })
    }
}

/// Opens a directory below `top` by a path without links, which is at most [`PATH_MAX`] long.
fn open_real(top: &OwnedFd, path: &[u8]) -> Result<OwnedFd> {
    openat(top, path, DIRECTORY, Mode::empty()).map_err(disk)
}

/// Lists the entries of a directory, without `.` and `..`.
fn entries(fd: &OwnedFd) -> Result<Vec<(Vec<u8>, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(fd).map_err(disk)? {
        let entry = entry.map_err(disk)?;
        let name: &CStr = entry.file_name();
        if name != c"." && name != c".." {
            found.push((name.to_bytes().to_vec(), entry.file_type()));
        }
    }
    Ok(found)
}

/// Returns the file type of `name` in the directory, if it exists.
pub(super) fn kind_of(parent: &OwnedFd, name: &[u8]) -> Result<Option<FileType>> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(disk(error)),
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Splits a path into its steps, without empty ones and `.`.
fn steps(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|step| !step.is_empty() && *step != b".").map(<[u8]>::to_vec)
}

fn mtime_of(stat: &Stat) -> Timespec {
    Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or_default() }
}

/// Sets the modification time of an open file.
pub(super) fn set_mtime(fd: &OwnedFd, mtime: Timespec) -> Result<()> {
    futimens(fd, &times(mtime)).map_err(disk)
}

/// Returns timestamps that set the modification time and leave that of the last access.
pub(super) fn times(mtime: Timespec) -> Timestamps {
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: mtime }
}

/// Converts an I/O error of the disk; a name that is too long is the image's fault.
pub(super) fn disk(error: Errno) -> Error {
    if error == Errno::NAMETOOLONG {
        return refuse("a name is too long");
    }
    crate::disk::failed("unpack an image", error.into())
}
