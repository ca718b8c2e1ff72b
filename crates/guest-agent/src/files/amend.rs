//! Removals, modes and times of many files at once. No path leads out of the directory: each step is a
//! directory, opened in the one before.

use std::os::fd::OwnedFd;

use guest_protocol::{AMEND_FAILURES_MAX, Amend, AmendFailure, Amended, Attributes, FailureKind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmodat, open, openat, statat, unlinkat, utimensat};
use rustix::io::Errno;

use super::long_work::Output;
use super::names::decoded;
use super::path::check;
use super::unpack::{file_refused, is_dir, open_step, steps, time, times};
use crate::failure::{Result, invalid, lookup_refused, refused};

const MODE_MAX: u32 = 0o7777;
const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Removes files, then sets modes and times, and sends the account. A path that fails is in it, and the
/// others are done nevertheless.
///
/// # Errors
/// Not found for the directory; invalid, with nothing done, for a path that could lead out of it.
pub(crate) fn amend(request: &Amend, output: &mut Output) -> Result<()> {
    let path = &check(&request.path)?;
    let attributes = request.attributes.iter().map(|attributes| attributes.path.as_str());
    for path in request.remove.iter().map(String::as_str).chain(attributes) {
        steps(&decoded(path)).map_err(|failure| invalid(format!("`{path}`: {}", failure.message)))?;
    }
    // The directory is named by the caller, and may be a link.
    let root = open(path.bytes(), OPEN_DIR, Mode::empty()).map_err(|errno| lookup_refused(path, errno))?;
    if output.begin().is_err() {
        return Ok(());
    }
    let mut done = Amended::default();
    for path in &request.remove {
        match remove(&root, &decoded(path)) {
            Ok(removed) => done.removed += u64::from(removed),
            Err(failure) => note(&mut done, path, failure.message),
        }
        if output.check().is_err() {
            return Ok(());
        }
    }
    for attributes in &request.attributes {
        match set(&root, attributes) {
            Ok(()) => done.changed += 1,
            Err(failure) => note(&mut done, &attributes.path, failure.message),
        }
    }
    // A caller that has left does not need it.
    let _ = output.row(&done).and_then(|()| output.flush());
    Ok(())
}

fn note(done: &mut Amended, path: &str, message: String) {
    done.failed += 1;
    if done.failures.len() < AMEND_FAILURES_MAX {
        done.failures.push(AmendFailure { path: path.to_owned(), message });
    }
}

/// Opens the directory of a path below the root, and returns the name in it.
fn place<'a>(root: &OwnedFd, steps: &'a [&'a [u8]]) -> Result<(OwnedFd, &'a [u8])> {
    let Some((name, above)) = steps.split_last() else { return Err(invalid("is the directory itself")) };
    let mut dir = openat(root, ".", OPEN_DIR, Mode::empty()).map_err(|errno| refused("its directory", errno))?;
    for step in above {
        dir = open_step(&dir, step).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => invalid("a link or a file is in its path"),
            errno => refused("its directory", errno),
        })?;
    }
    Ok((dir, name))
}

/// Removes a file, or a directory that is empty. Returns false if nothing is there.
fn remove(root: &OwnedFd, path: &[u8]) -> Result<bool> {
    let steps = steps(path)?;
    let (dir, name) = match place(root, &steps) {
        Err(failure) if failure.kind == FailureKind::NotFound => return Ok(false),
        place => place?,
    };
    let flags = if is_dir(&dir, name) { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match unlinkat(&dir, name, flags) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(invalid("the directory is not empty")),
        Err(errno) => Err(refused("the file", errno)),
    }
}

/// Sets mode and time. A link has no mode, and is not followed.
fn set(root: &OwnedFd, attributes: &Attributes) -> Result<()> {
    let path = decoded(&attributes.path);
    let steps = steps(&path)?;
    let (dir, name) = if steps.is_empty() {
        (openat(root, ".", OPEN_DIR, Mode::empty()).map_err(|errno| refused("the directory", errno))?, &b"."[..])
    } else {
        place(root, &steps)?
    };
    let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(file_refused)?;
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    if let Some(mode) = attributes.mode.filter(|_| !is_link) {
        chmodat(&dir, name, Mode::from_raw_mode(mode & MODE_MAX), AtFlags::empty()).map_err(file_refused)?;
    }
    if let Some(mtime) = &attributes.mtime {
        let mtime = time(mtime).ok_or_else(|| invalid("`mtime` is not a number of seconds"))?;
        utimensat(&dir, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(file_refused)?;
    }
    Ok(())
}
