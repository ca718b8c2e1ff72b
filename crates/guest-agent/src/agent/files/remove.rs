//! Removing, whatever a guest has piled up: without recursion, and with a few
//! descriptors however deep the tree.

use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::Delete;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::{ENTRIES_PER_TURN, checked};
use crate::agent::failure::{Result, invalid, refused};

/// Names that are tried for a directory that was moved up.
const NAMES_MAX: u64 = 1_000_000;

/// Removes a file, a link itself, or a directory.
pub(crate) async fn delete(request: &Delete) -> Result<()> {
    let path = checked(&request.path)?;
    if path == "/" {
        return Err(invalid("the root of the sandbox cannot be removed; destroy the sandbox instead"));
    }
    let stat = statat(CWD, &*path, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| refused(&path, errno))?;
    let failed = |errno| refused(&path, errno);
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return unlinkat(CWD, &*path, AtFlags::empty()).map_err(failed);
    }
    match unlinkat(CWD, &*path, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if request.recursive => {}
        done => return done.map_err(failed),
    }
    let top = open_dir(CWD, &path).map_err(failed)?;
    empty(&top).await.map_err(failed)?;
    drop(top);
    unlinkat(CWD, &*path, AtFlags::REMOVEDIR).map_err(failed)
}

fn open_dir(at: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Empties a directory. A directory found deeper is moved up beside the others
/// first, so that the tree becomes flat while it shrinks.
async fn empty(top: &OwnedFd) -> Result<(), Errno> {
    let mut next_name = 0;
    loop {
        let mut is_clean = true;
        let mut seen = 0usize;
        let mut entries = Dir::read_from(top)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            is_clean = false;
            match unlinkat(top, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let dir = openat(top, name, flags, Mode::empty())?;
                    flatten(top, &dir, &mut next_name).await?;
                    match unlinkat(top, name, AtFlags::REMOVEDIR) {
                        // Somebody in the box goes on writing: the next look has it.
                        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                Err(errno) => return Err(errno),
            }
            seen += 1;
            if seen.is_multiple_of(ENTRIES_PER_TURN) {
                tokio::task::yield_now().await;
            }
        }
        if is_clean {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Removes the files of a directory, and moves its directories up to `top`.
async fn flatten(top: &OwnedFd, dir: &OwnedFd, next_name: &mut u64) -> Result<(), Errno> {
    let mut entries = Dir::read_from(dir)?;
    let mut seen = 0usize;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => match unlinkat(dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    let place = free_name(top, next_name)?;
                    renameat(dir, name, top, &*place)?;
                }
                Err(errno) => return Err(errno),
            },
            Err(errno) => return Err(errno),
        }
        seen += 1;
        if seen.is_multiple_of(ENTRIES_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Makes an empty directory to rename onto.
fn free_name(top: &OwnedFd, next: &mut u64) -> Result<String, Errno> {
    for _ in 0..NAMES_MAX {
        let name = format!(".tidebox-removal-{next}");
        *next += 1;
        match mkdirat(top, &*name, Mode::from_raw_mode(0o700)) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}
