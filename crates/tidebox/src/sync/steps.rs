//! Paths below a directory, of which each step is a directory that is no link.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;

/// Flags of a directory that is a step of a path.
pub const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Beginning of the names of files that are not whole yet; sixteen hexadecimal digits follow.
pub const TEMPORARY: &[u8] = b".tidebox-sync-";
/// Returns whether a name is that of a file which an interrupted run has left.
pub fn is_temporary(name: &[u8]) -> bool {
    let rest = name.strip_prefix(TEMPORARY);
    rest.is_some_and(|rest| rest.len() == 16 && rest.iter().all(u8::is_ascii_hexdigit))
}

/// Splits a path into that of its directory and the name in it.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Opens a directory below `root`, step by step.
pub fn open_steps(root: &OwnedFd, dir: &[u8]) -> rustix::io::Result<OwnedFd> {
    let mut opened = openat(root, ".", OPEN_DIR, Mode::empty())?;
    for step in dir.split(|byte| *byte == b'/').filter(|step| !step.is_empty()) {
        if matches!(step, b"." | b"..") {
            return Err(Errno::INVAL);
        }
        opened = openat(&opened, step, OPEN_DIR, Mode::empty())?;
    }
    Ok(opened)
}

/// Opens the directory of a synchronization, which may be a link.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
