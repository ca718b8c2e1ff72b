//! Files of the box, as the box's user. The kernel resolves every path inside the box. Work is done
//! in pieces, with other tasks' turns between them.

pub(crate) mod amend;
pub(crate) mod as_user;
mod copy;
pub(crate) mod glob;
pub(crate) mod in_place;
pub(crate) mod list;
pub(crate) mod long_work;
pub(crate) mod manifest;
mod mode;
mod names;
mod owners;
pub(crate) mod pack;
mod path;
pub(crate) mod read;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod replace;
pub(crate) mod search;
pub(crate) mod unpack;
mod walk;
pub(crate) mod watch;
pub(crate) mod watchers;
pub(crate) mod write;
pub(crate) mod xattrs;

use std::os::fd::{AsFd, AsRawFd};

use guest_protocol::file_text::escaped;
use guest_protocol::{Chmod, FileInfo, PathOnly};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, open, readlinkat, statat};
use rustix::io::Errno;

use self::mode::{MODE_MAX, check_mode};
use self::owners::Owners;
use self::path::{RawPath, check, name_of, normal, trimmed};
use crate::failure::{Result, conflict, invalid, lookup_refused, refused};

/// Entries of a directory between two turns of other tasks.
const ENTRIES_PER_TURN: usize = 128;

/// Describes one file, directory or link; a link is not followed.
pub(crate) fn stat(request: &PathOnly) -> Result<FileInfo> {
    let path = &check(&request.path)?;
    let stat = statat(CWD, path.bytes(), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| lookup_refused(path, errno))?;
    Ok(describe(&normal(path.bytes()), &stat, CWD, path.bytes()))
}

/// Describes what a path leads to, through all links.
pub(crate) fn resolve(request: &PathOnly) -> Result<FileInfo> {
    let path = &check(&request.path)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = open(path.bytes(), flags, Mode::empty()).map_err(|errno| lookup_refused(path, errno))?;
    let stat = fstat(&found).map_err(|errno| lookup_refused(path, errno))?;
    let real = readlinkat(CWD, format!("/proc/self/fd/{}", found.as_raw_fd()), Vec::new());
    let real = real.map_or_else(|_| normal(path.bytes()), |real| real.into_bytes());
    let real = if real.starts_with(b"/") { real } else { normal(path.bytes()) };
    Ok(describe(&real, &stat, CWD, &real))
}

/// Makes a directory, and its parents where they are missing.
///
/// # Errors
/// Conflict for a directory that is there already, invalid for another file.
pub(crate) fn make_dir(request: &PathOnly) -> Result<()> {
    let path = &check(&request.path)?;
    match statat(CWD, path.bytes(), AtFlags::empty()) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            Err(conflict(format!("{path}: the directory exists already")))
        }
        Ok(_) => Err(invalid(format!("{path}: is not a directory"))),
        Err(Errno::NOENT) => match write::make_dir_and_parents(trimmed(path.bytes())) {
            Err(Errno::NOTDIR | Errno::EXIST) => Err(invalid(format!("{path}: a part of it is not a directory"))),
            made => made.map_err(|errno| refused(path, errno)),
        },
        Err(Errno::NOTDIR) => Err(invalid(format!("{path}: a part of it is not a directory"))),
        Err(errno) => Err(refused(path, errno)),
    }
}

/// Sets permission bits; follows links.
pub(crate) fn chmod(request: &Chmod) -> Result<()> {
    let path = &check(&request.path)?;
    check_mode(request.mode)?;
    rustix::fs::chmod(path.bytes(), Mode::from_raw_mode(request.mode)).map_err(|errno| lookup_refused(path, errno))
}

/// Describes a file at a normal path; a link is read as `entry` below `dir`.
fn describe(path: &[u8], stat: &Stat, dir: impl AsFd, entry: &[u8]) -> FileInfo {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_symlink = kind == FileType::Symlink;
    let target = is_symlink.then(|| readlinkat(dir, entry, Vec::new()).ok()).flatten();
    let target = target.map(|target| escaped(target.as_bytes()));
    Facts::of(stat).info(escaped(name_of(path)), escaped(path), target, &Owners::read())
}

/// Facts of a file besides its name; `mode` includes its type.
#[derive(Debug, Clone, Copy)]
struct Facts {
    mode: u32,
    size: u64,
    modified_ms: i64,
    uid: u32,
    gid: u32,
}

impl Facts {
    fn of(stat: &Stat) -> Facts {
        Facts {
            mode: stat.st_mode,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ms: modified_ms(stat),
            uid: stat.st_uid,
            gid: stat.st_gid,
        }
    }

    fn info(self, name: String, path: String, target: Option<String>, owners: &Owners) -> FileInfo {
        let kind = FileType::from_raw_mode(self.mode);
        FileInfo {
            name,
            path,
            size: self.size,
            is_dir: kind == FileType::Directory,
            is_symlink: kind == FileType::Symlink,
            target,
            modified_ms: self.modified_ms,
            mode: self.mode & MODE_MAX,
            owner: owners.user(self.uid),
            group: owners.group(self.gid),
        }
    }
}

fn modified_ms(stat: &Stat) -> i64 {
    let seconds = i128::from(stat.st_mtime);
    let nanoseconds = i128::from(stat.st_mtime_nsec);
    let ms = seconds * 1000 + nanoseconds / 1_000_000;
    i64::try_from(ms).unwrap_or(if ms < 0 { i64::MIN } else { i64::MAX })
}

/// Returns whether a file of any kind, a link included, is at `path`.
fn exists(path: &[u8]) -> bool {
    !matches!(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT | Errno::NOTDIR))
}

/// Returns the failure for `path`, which should have been a directory.
fn directory_refused(path: &RawPath, errno: Errno) -> guest_protocol::Failure {
    if errno == Errno::NOTDIR && !exists(path.bytes()) { refused(path, Errno::NOENT) } else { refused(path, errno) }
}
