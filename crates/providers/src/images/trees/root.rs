//! The root directory that an image is unpacked into, and finding one's way in it.
//!
//! Everything happens relative to a descriptor of a directory that is known to
//! lie inside: the kernel resolves the way there as if the root were `/`, and
//! the last name of a path is only ever given to calls that do not follow it.
//! Nobody else may enter the folder, so nothing changes between two calls.

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

use super::super as images;
use super::archive::refuse;
use super::stream::Budget;
use crate::{Error, Result};

/// The longest path inside an image, links resolved: whoever copies a tree by
/// its paths puts something in front of them, and 4,096 bytes is all there is.
const PATH_MAX: usize = 3_500;
/// As the kernel has it.
const LINKS_MAX: u32 = 40;
/// Opens a directory to work in it; a link in its place is refused.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// What is known of a directory in the root, by its inode.
#[derive(Debug, Clone, Copy)]
struct Known {
    parent: u64,
    /// Of its path from the root, in bytes.
    length: usize,
    /// The last layer that had something to say of it or of anything below it.
    layer: u32,
}

/// The directory that is being worked in.
#[derive(Debug)]
pub(super) struct Here {
    /// As a layer named it.
    path: Vec<u8>,
    pub(super) fd: OwnedFd,
    pub(super) ino: u64,
    /// Put back when it is left: what happens inside is no change of it.
    mtime: Timespec,
}

/// A root directory that an image is unpacked into.
#[derive(Debug)]
pub(super) struct Root<'a> {
    fd: OwnedFd,
    ino: u64,
    here: Option<Here>,
    known: HashMap<u64, Known>,
    /// Files of the current layer, by a hash of their directory and name.
    fresh: HashSet<u64>,
    /// Directories that have nothing of lower layers any more, by inode: what comes
    /// into them in this layer is of this layer.
    hidden: HashSet<u64>,
    hasher: RandomState,
    layer: u32,
    /// Directories count as files of the image, those that no layer names too.
    budget: &'a Budget,
    /// Directories that were in the way, to be removed with this folder.
    trash: PathBuf,
    trashed: u64,
}

impl<'a> Root<'a> {
    /// Works in `path`, an empty directory; what has to go is moved to `trash`.
    pub(super) fn open(path: &Path, trash: &Path, budget: &'a Budget) -> Result<Self> {
        let fd = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(disk)?;
        let ino = fstat(&fd).map_err(disk)?.st_ino;
        let mut known = HashMap::new();
        known.insert(ino, Known { parent: ino, length: 0, layer: 0 });
        let (here, trash) = (None, trash.to_owned());
        let (fresh, hasher) = (HashSet::new(), RandomState::new());
        let hidden = HashSet::new();
        Ok(Root { fd, ino, here, known, fresh, hidden, hasher, layer: 0, budget, trash, trashed: 0 })
    }

    /// What is there from now on counts as of lower layers.
    pub(super) fn next_layer(&mut self) -> Result<()> {
        self.leave()?;
        self.layer += 1;
        self.fresh = HashSet::new();
        self.hidden = HashSet::new();
        Ok(())
    }

    /// Goes to the directory `path`, as a layer names it; directories that are
    /// missing are made.
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

    /// Goes to the directory `path` if it is there.
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

    /// The directory `path`, which stays what it is; `None` if there is none.
    pub(super) fn existing(&mut self, path: &[u8]) -> Result<Option<OwnedFd>> {
        match self.resolve(path) {
            Ok(None) => self.walk(path, false),
            Ok(found) => Ok(found),
            // A file is in the way, so there is no such directory.
            Err(Error::Invalid(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Goes to where one is from now on: the directory `fd`, which `path` names.
    pub(super) fn stay(&mut self, path: Vec<u8>, fd: OwnedFd) -> Result<()> {
        self.leave()?;
        self.here = Some(Here::new(path, fd)?);
        Ok(())
    }

    /// Leaves the directory that is being worked in.
    pub(super) fn leave(&mut self) -> Result<()> {
        match self.here.take() {
            Some(here) => set_mtime(&here.fd, here.mtime),
            None => Ok(()),
        }
    }

    /// Opens the directory at `path` the quick way. `None` if it is missing or
    /// has to be looked for by hand.
    fn resolve(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        if path.is_empty() {
            return openat(&self.fd, ".", DIRECTORY, Mode::empty()).map(Some).map_err(disk);
        }
        // Links are followed by hand, where it is counted how far they lead: forty of them
        // may stand for a way of many thousand steps.
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        // Without NOFOLLOW, which would take a link at the end for a file.
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        for _ in 0..16 {
            match openat2(&self.fd, path, flags, Mode::empty(), how) {
                Ok(fd) => return Ok(Some(fd)),
                // Something was renamed somewhere, and the way has a `..`.
                Err(Errno::AGAIN) => {}
                // Old kernels, and containers that forbid the call.
                Err(Errno::NOENT | Errno::NOSYS | Errno::PERM | Errno::LOOP) => return Ok(None),
                Err(Errno::NOTDIR) => return Err(refuse("a file is where its directory should be")),
                Err(error) => return Err(disk(error)),
            }
        }
        Ok(None)
    }

    /// Goes to the directory at `path` step by step, and makes what is missing.
    fn walk(&mut self, path: &[u8], make: bool) -> Result<Option<OwnedFd>> {
        let mut way: VecDeque<Vec<u8>> = steps(path).collect();
        let mut links = 0;
        let mut at = openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(disk)?;
        while let Some(step) = way.pop_front() {
            self.budget.step()?;
            if step == b".." {
                // Not beyond the root.
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
                        return Err(refuse("links on its way lead round in a circle"));
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

    /// Makes a directory in one of ours, and remembers it.
    pub(super) fn make_directory(&mut self, parent: &OwnedFd, name: &[u8], mode: u32) -> Result<OwnedFd> {
        let inside = fstat(parent).map_err(disk)?;
        let length = self.length_of(inside.st_ino, name)?;
        mkdirat(parent, name, Mode::from(0o700)).map_err(disk)?;
        let fd = openat(parent, name, DIRECTORY, Mode::empty()).map_err(disk)?;
        fchmod(&fd, Mode::from(mode)).map_err(disk)?;
        set_mtime(&fd, Timespec { tv_sec: 0, tv_nsec: 0 })?;
        // Who made it changes nothing of what it was.
        set_mtime(parent, mtime_of(&inside))?;
        let known = Known { parent: inside.st_ino, length, layer: 0 };
        self.known.insert(fstat(&fd).map_err(disk)?.st_ino, known);
        Ok(fd)
    }

    /// Checks the length of the path that something in the directory `parent`
    /// would have, and returns it.
    pub(super) fn length_of(&self, parent: u64, name: &[u8]) -> Result<usize> {
        let above = self.known.get(&parent).map_or(0, |known| known.length);
        let length = above + 1 + name.len();
        if name.len() > 255 || length > PATH_MAX {
            return Err(refuse(format!("its path is longer than {PATH_MAX} bytes, or a name in it longer than 255")));
        }
        Ok(length)
    }

    /// Counts the directory, and with it all above it, as of the current layer.
    pub(super) fn touch_directory(&mut self, ino: u64) {
        let mut next = ino;
        while let Some(known) = self.known.get_mut(&next).filter(|known| known.layer != self.layer) {
            known.layer = self.layer;
            next = known.parent;
        }
    }

    /// Counts the file `name` in the directory `parent` as of the current layer.
    pub(super) fn touch_file(&mut self, parent: u64, name: &[u8]) {
        self.fresh.insert(self.hasher.hash_one((parent, name)));
        self.touch_directory(parent);
    }

    /// Makes room for something else in a directory of ours: whatever has the
    /// name is no longer there.
    pub(super) fn clear(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<()> {
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => self.discard(parent, name),
            // Some file systems say so of a directory.
            Err(Errno::PERM) if kind_of(parent, name)? == Some(FileType::Directory) => self.discard(parent, name),
            Err(error) => Err(disk(error)),
        }
    }

    /// A directory is moved away whole, and emptied when there is time.
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

    /// Hides `name` of lower layers in the directory one is in.
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

    /// Hides what lower layers have in the directory `top`, however deep. What
    /// the current layer has put there stays.
    pub(super) fn hide_content(&mut self, top: OwnedFd) -> Result<()> {
        // Paths and not descriptors: there may be more levels than we may open.
        let mut todo: Vec<Vec<u8>> = vec![Vec::new()];
        while let Some(path) = todo.pop() {
            let fd = if path.is_empty() {
                openat(&top, ".", DIRECTORY, Mode::empty()).map_err(disk)?
            } else {
                open_real(&top, &path)?
            };
            let stat = fstat(&fd).map_err(disk)?;
            // Once is enough: a layer may say it of each directory as often as it likes.
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

    /// Visits every directory, the deepest first.
    pub(super) fn each_directory(&self, mut visit: impl FnMut(&OwnedFd, &Stat) -> Result<()>) -> Result<()> {
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

    /// A descriptor of the root itself.
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

/// Opens a directory below `top` by a path on which no name is a link; such a path
/// is at most [`PATH_MAX`] long.
fn open_real(top: &OwnedFd, path: &[u8]) -> Result<OwnedFd> {
    openat(top, path, DIRECTORY, Mode::empty()).map_err(disk)
}

/// What a directory holds, without `.` and `..`.
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

/// What `name` is in the directory, if there is such a thing.
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

/// The steps of a path, without those that lead nowhere.
fn steps(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|step| !step.is_empty() && *step != b".").map(<[u8]>::to_vec)
}

fn mtime_of(stat: &Stat) -> Timespec {
    Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or_default() }
}

/// Sets when an open file was last changed.
pub(super) fn set_mtime(fd: &OwnedFd, mtime: Timespec) -> Result<()> {
    futimens(fd, &times(mtime)).map_err(disk)
}

/// Leaves the time of the last access as it is.
pub(super) fn times(mtime: Timespec) -> Timestamps {
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: mtime }
}

/// What a fault of the disk means; a name that no file may have is the image's.
pub(super) fn disk(error: Errno) -> Error {
    if error == Errno::NAMETOOLONG {
        return refuse("a name is too long");
    }
    images::disk("unpack an image", error.into())
}
