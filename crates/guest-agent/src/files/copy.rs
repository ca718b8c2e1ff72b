//! Moves between two file systems of the box, where the kernel cannot rename.

use std::os::fd::OwnedFd;

use guest_protocol::Failure;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, fchown, fstat, futimens, open, statat,
    unlinkat,
};
use rustix::io::Errno;
use tokio::task::yield_now;

use super::path::{RawPath, split};
use super::write::{Place, Temporary};
use crate::failure::{Result, invalid, refused};

/// Bytes copied at once; other tasks have their turn after each piece.
const PIECE_BYTES: usize = 256 * 1024;

/// Copies a regular file to `new` and removes `old`.
///
/// # Errors
/// Invalid for anything but a regular file: a copy of a tree cannot replace its target atomically.
pub(super) async fn move_across(old: &RawPath, new: &RawPath) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let source = match open(old.bytes(), flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Err(not_a_file(old, new)),
        opened => opened.map_err(|errno| refused(old, errno))?,
    };
    let stat = fstat(&source).map_err(|errno| refused(old, errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_a_file(old, new));
    }
    let (dir, name) = split(new.bytes())?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = open(dir, flags, Mode::empty()).map_err(|errno| refused(new, errno))?;
    if statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|there| FileType::from_raw_mode(there.st_mode) == FileType::Directory)
    {
        return Err(refused(new, Errno::ISDIR));
    }
    // Owner and mode come from the file that is moved, not from the one replaced.
    let place = Place { dir, name: name.to_owned(), old: None };
    copy(&source, &stat, &place).await.map_err(|errno| refused(new, errno))?;
    unlinkat(CWD, old.bytes(), AtFlags::empty()).map_err(|errno| refused(old, errno))
}

async fn copy(source: &OwnedFd, stat: &Stat, place: &Place) -> Result<(), Errno> {
    let temporary = Temporary::create(place)?;
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    loop {
        piece.clear();
        if rustix::io::read(source, rustix::buffer::spare_capacity(&mut piece))? == 0 {
            break;
        }
        temporary.write_all(&piece)?;
        yield_now().await;
    }
    fchown(&temporary.file, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    let last_access = timespec(stat.st_atime, stat.st_atime_nsec);
    let last_modification = timespec(stat.st_mtime, stat.st_mtime_nsec);
    futimens(&temporary.file, &Timestamps { last_access, last_modification })?;
    temporary.replace(place, Some(stat.st_mode & super::mode::MODE_MAX))
}

fn timespec(tv_sec: i64, nanoseconds: u64) -> Timespec {
    Timespec { tv_sec, tv_nsec: i64::try_from(nanoseconds).unwrap_or(0) }
}

fn not_a_file(old: &RawPath, new: &RawPath) -> Failure {
    invalid(format!("{old} and {new} are on different file systems, between which only files can be moved; use `mv`"))
}
