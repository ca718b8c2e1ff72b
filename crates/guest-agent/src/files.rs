//! Files of the box, as the box's user. The kernel resolves every path inside the box. Work is done
//! in pieces, with other tasks' turns between them.

pub(crate) mod amend;
pub(crate) mod as_user;
mod copy;
pub(crate) mod glob;
pub(crate) mod list;
pub(crate) mod long_work;
pub(crate) mod manifest;
mod names;
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
pub(crate) mod write;

use std::os::fd::AsFd;

use guest_protocol::file_text::escaped;
use guest_protocol::{Chmod, FileInfo, PathOnly};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat, readlinkat, statat};
use rustix::io::Errno;

use self::path::{RawPath, check, name_of, normal};
use crate::failure::{Result, invalid, lookup_refused, refused};

/// Maximum of the permission bits.
const MODE_MAX: u32 = 0o7777;
/// Entries of a directory between two turns of other tasks.
const ENTRIES_PER_TURN: usize = 128;

/// Describes one file, directory or link; a link is not followed.
pub(crate) fn stat(request: &PathOnly) -> Result<FileInfo> {
    let path = &check(&request.path)?;
    let stat = statat(CWD, path.bytes(), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| lookup_refused(path, errno))?;
    Ok(describe(&normal(path.bytes()), &stat, CWD, path.bytes()))
}

/// Sets permission bits; follows links.
pub(crate) fn chmod(request: &Chmod) -> Result<()> {
    let path = &check(&request.path)?;
    check_mode(request.mode)?;
    rustix::fs::chmod(path.bytes(), Mode::from_raw_mode(request.mode)).map_err(|errno| lookup_refused(path, errno))
}

fn check_mode(mode: u32) -> Result<()> {
    if mode <= MODE_MAX { Ok(()) } else { Err(invalid("the mode must be at most 7777 (octal)")) }
}

/// Describes a file at a normal path; a link is read as `entry` below `dir`.
fn describe(path: &[u8], stat: &Stat, dir: impl AsFd, entry: &[u8]) -> FileInfo {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_symlink = kind == FileType::Symlink;
    let target = is_symlink.then(|| readlinkat(dir, entry, Vec::new()).ok()).flatten();
    let target = target.map(|target| escaped(target.as_bytes()));
    info_of(
        escaped(name_of(path)),
        escaped(path),
        target,
        stat.st_mode,
        u64::try_from(stat.st_size).unwrap_or(0),
        modified_ms(stat),
    )
}

/// Builds the description of a file; `st_mode` includes its type.
fn info_of(name: String, path: String, target: Option<String>, st_mode: u32, size: u64, modified_ms: i64) -> FileInfo {
    let kind = FileType::from_raw_mode(st_mode);
    FileInfo {
        name,
        path,
        size,
        is_dir: kind == FileType::Directory,
        is_symlink: kind == FileType::Symlink,
        target,
        modified_ms,
        mode: st_mode & MODE_MAX,
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
