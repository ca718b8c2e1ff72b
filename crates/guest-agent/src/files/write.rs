//! Writing of files, all or nothing: a temporary file replaces the old one.

use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::WriteFile;
use guest_protocol::file_text::escaped;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, mkdir, open, openat, readlinkat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::task::yield_now;

use super::mode::{MODE_MAX, check_mode};
use super::path::{RawPath, check, split};
use crate::failure::{Result, invalid, refused};

/// Bytes written at once; other tasks have their turn after each piece.
pub(super) const PIECE_BYTES: usize = 256 * 1024;
/// Maximum number of links to follow, as in the kernel.
const LINKS_MAX: usize = 40;
/// Mode of a new file.
const MODE_DEFAULT: u32 = 0o644;
/// Mode of missing parents.
const MODE_PARENTS: u32 = 0o755;
/// The set-user-id and set-group-id bits.
const SET_ID_BITS: u32 = 0o6000;
/// Attempts to find an unused name for a temporary file.
const NAME_TRIES_MAX: usize = 16;

/// Writes `body` as a file.
///
/// # Errors
/// After any error the old file is unchanged and no new one exists.
pub(crate) async fn write(request: &WriteFile, body: Incoming) -> Result<()> {
    let path = &check(&request.path)?;
    request.mode.map_or(Ok(()), check_mode)?;
    if path.bytes().ends_with(b"/") {
        return Err(invalid(format!("{path}: a file's path must not end with a slash")));
    }
    let mut parents = Parents::default();
    let place = Place::find(path, &mut parents)?;
    let temporary = Temporary::create(&place).map_err(|errno| write_refused(path, errno))?;
    fill(&temporary, path, body).await?;
    temporary.replace(&place, request.mode).map_err(|errno| write_refused(path, errno))?;
    parents.keep();
    Ok(())
}

/// Replaces the content of an existing file, all or nothing. The file keeps its mode and its owner.
///
/// # Errors
/// After any error the old file is unchanged.
pub(super) fn overwrite(path: &RawPath, content: &[u8]) -> Result<()> {
    let place = Place::find(path, &mut Parents::default())?;
    if place.old.is_none() {
        return Err(invalid(format!("{path}: no longer exists")));
    }
    let temporary = Temporary::create(&place).map_err(|errno| write_refused(path, errno))?;
    temporary.write_all(content).map_err(|errno| refused(path, errno))?;
    temporary.replace(&place, None).map_err(|errno| write_refused(path, errno))
}

/// Makes a directory, and its parents where they are missing.
pub(crate) fn make_dir_and_parents(path: &[u8]) -> Result<(), Errno> {
    let mut parents = Parents::default();
    parents.make(path)?;
    parents.keep();
    Ok(())
}

/// Returns the failure of a write. A directory that is gone makes the request invalid.
fn write_refused(path: &RawPath, errno: Errno) -> guest_protocol::Failure {
    match errno {
        Errno::NOENT => invalid(format!("{path}: its directory no longer exists")),
        errno => refused(path, errno),
    }
}

async fn fill(temporary: &Temporary<'_>, path: &RawPath, mut body: Incoming) -> Result<()> {
    let mut unrested = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| invalid("the content was cut off"))?;
        let Ok(bytes) = frame.into_data() else { continue };
        for piece in bytes.chunks(PIECE_BYTES) {
            temporary.write_all(piece).map_err(|errno| refused(path, errno))?;
            unrested += piece.len();
            if unrested >= PIECE_BYTES {
                unrested = 0;
                yield_now().await;
            }
        }
    }
    Ok(())
}

/// Location of the file, after all links: a directory and a name in it.
pub(super) struct Place {
    pub(super) dir: OwnedFd,
    pub(super) name: Vec<u8>,
    /// Existing regular file, if there is one.
    pub(super) old: Option<Stat>,
}

impl Place {
    fn find(path: &RawPath, parents: &mut Parents) -> Result<Place> {
        let mut wanted = path.bytes().to_owned();
        let mut from: Option<OwnedFd> = None;
        for _ in 0..LINKS_MAX {
            let (dir, name) = split_any(&wanted)?;
            let dir = open_dir(from.as_ref(), dir, parents).map_err(|errno| write_refused(path, errno))?;
            let old = match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(write_refused(path, errno)),
            };
            let kind = old.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode));
            match kind {
                Some(FileType::RegularFile) if !may_write(&dir, name) => return Err(refused(path, Errno::ACCESS)),
                None | Some(FileType::RegularFile) => return Ok(Place { name: name.to_owned(), dir, old }),
                Some(FileType::Symlink) => {
                    let target = readlinkat(&dir, name, Vec::new()).map_err(|errno| write_refused(path, errno))?;
                    wanted = target.into_bytes();
                    from = Some(dir);
                }
                Some(FileType::Directory) => return Err(invalid(format!("{path}: is a directory"))),
                Some(_) => return Err(invalid(format!("{path}: not a regular file"))),
            }
        }
        Err(refused(path, Errno::LOOP))
    }
}

/// Returns whether the file itself may be written to. With write permission on the directory alone
/// the file could be replaced, but that is not a permission to write it.
fn may_write(dir: &OwnedFd, name: &[u8]) -> bool {
    if geteuid().is_root() {
        return true;
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    !matches!(openat(dir, name, flags, Mode::empty()), Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// Splits a path like [`split`], also the relative target of a link.
fn split_any(path: &[u8]) -> Result<(&[u8], &[u8])> {
    if path.ends_with(b"/") {
        return Err(invalid(format!("{}: is a directory", escaped(path))));
    }
    if path.contains(&b'/') { split(path) } else { Ok((b"", path)) }
}

/// Opens the directory `path`, from `from` if it is relative, and makes missing ones.
fn open_dir(from: Option<&OwnedFd>, path: &[u8], parents: &mut Parents) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = from.map_or(CWD, AsFd::as_fd);
    let path = if path.is_empty() { b"." } else { path };
    match openat(base, path, flags, Mode::empty()) {
        // Relative link targets are in directories that exist.
        Err(Errno::NOENT) if path.starts_with(b"/") => {
            parents.make(path)?;
            open(path, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// Directories that were made for the file; removed again unless kept.
#[derive(Debug, Default)]
pub(super) struct Parents {
    made: Vec<Vec<u8>>,
}

impl Parents {
    /// Makes the missing directories of `dir`, which is absolute.
    pub(super) fn make(&mut self, dir: &[u8]) -> Result<(), Errno> {
        let ends = dir.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0).map(|(at, _)| at);
        let whole = (!dir.ends_with(b"/")).then_some(dir.len());
        for prefix in ends.chain(whole).filter_map(|end| dir.get(..end)) {
            match mkdir(prefix, Mode::from_raw_mode(MODE_PARENTS)) {
                Ok(()) => self.made.push(prefix.to_owned()),
                Err(Errno::EXIST | Errno::ISDIR) => {}
                // Also on read-only file systems that have the directory already.
                Err(errno) => match statat(CWD, prefix, AtFlags::empty()) {
                    Ok(_) => {}
                    Err(_) => return Err(errno),
                },
            }
        }
        Ok(())
    }

    /// Keeps the directories that were made.
    pub(super) fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        for dir in self.made.iter().rev() {
            // One that other processes use by now is not empty, and stays.
            let _ = unlinkat(CWD, dir, AtFlags::REMOVEDIR);
        }
    }
}

/// Writes all bytes to a file.
pub(super) fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// A file under a temporary name; removed unless it replaces the target.
pub(super) struct Temporary<'a> {
    dir: &'a OwnedFd,
    name: String,
    pub(super) file: OwnedFd,
    placed: bool,
}

impl<'a> Temporary<'a> {
    pub(super) fn create(place: &'a Place) -> Result<Temporary<'a>, Errno> {
        Self::in_dir(&place.dir)
    }

    pub(super) fn in_dir(dir: &'a OwnedFd) -> Result<Temporary<'a>, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..NAME_TRIES_MAX {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let name = format!(".tidebox-{:016x}", u64::from_ne_bytes(random));
            match openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok(Temporary { dir, name, file, placed: false }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    pub(super) fn write_all(&self, bytes: &[u8]) -> Result<(), Errno> {
        write_all(&self.file, bytes)
    }

    /// Gives the file its name in the same directory.
    pub(super) fn rename(mut self, name: &[u8]) -> Result<(), Errno> {
        renameat(self.dir, &self.name, self.dir, name)?;
        self.placed = true;
        Ok(())
    }

    /// Replaces the old file, with its owner, and its mode unless there is a new one.
    pub(super) fn replace(mut self, place: &Place, mode: Option<u32>) -> Result<(), Errno> {
        let mut kept = MODE_DEFAULT;
        if let Some(old) = &place.old {
            kept = old.st_mode & MODE_MAX;
            // The owner first: a change of it clears setuid bits.
            match fchown(&self.file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid))) {
                // Another user's file that this user may write to: the new file is this user's.
                Err(Errno::PERM) => kept &= !SET_ID_BITS,
                outcome => outcome?,
            }
        }
        fchmod(&self.file, Mode::from_raw_mode(mode.unwrap_or(kept)))?;
        renameat(self.dir, &self.name, &place.dir, place.name.as_slice())?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.placed {
            // The box may have removed it already.
            let _ = unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}
