//! Writing into files themselves, as programs do: watchers see the file come, then its owner, then its
//! content.

use std::os::fd::OwnedFd;

use guest_protocol::WriteFile;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchown, fstat, ftruncate, open};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use tokio::task::yield_now;

use super::path::{RawPath, check, split};
use super::write::{PIECE_BYTES, Parents, write_all};
use super::xattrs;
use crate::failure::{Result, invalid, not_supported, refused};

/// Mode of a new file.
const MODE_NEW: u32 = 0o644;
/// Attempts to open a file that other processes make and remove at the same time.
const OPEN_TRIES_MAX: usize = 16;

/// Writes `body` into the file, which belongs to the user of this thread afterwards, and has the attributes that
/// the request names. Links are followed.
///
/// # Errors
/// Invalid for anything but a regular file. What was written before a fault stays.
pub(crate) async fn write(request: &WriteFile, mut body: Incoming) -> Result<()> {
    let path = &check(&request.path)?;
    if path.bytes().ends_with(b"/") {
        return Err(invalid(format!("{path}: a file's path must not end with a slash")));
    }
    let file = open_regular(path)?;
    own(&file).map_err(|errno| refused(path, errno))?;
    if let Some(new) = &request.xattrs {
        xattrs::replace(&file, new).map_err(|errno| match errno {
            Errno::NOTSUP => {
                not_supported(format!("{path}: its file system keeps no extended attributes; leave the metadata out"))
            }
            errno => refused(path, errno),
        })?;
    }
    let mut unrested = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| invalid("the content was cut off"))?;
        let Ok(bytes) = frame.into_data() else { continue };
        for piece in bytes.chunks(PIECE_BYTES) {
            write_all(&file, piece).map_err(|errno| refused(path, errno))?;
            unrested += piece.len();
            if unrested >= PIECE_BYTES {
                unrested = 0;
                yield_now().await;
            }
        }
    }
    Ok(())
}

/// Opens the file for writing, and empties or makes it.
fn open_regular(path: &RawPath) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    for _ in 0..OPEN_TRIES_MAX {
        match open(path.bytes(), flags, Mode::empty()) {
            Ok(file) => {
                let stat = fstat(&file).map_err(|errno| refused(path, errno))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(invalid(format!("{path}: not a regular file")));
                }
                if stat.st_size > 0 {
                    ftruncate(&file, 0).map_err(|errno| refused(path, errno))?;
                }
                return Ok(file);
            }
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => return Err(invalid(format!("{path}: is a directory"))),
            // A FIFO without a reader.
            Err(Errno::NXIO) => return Err(invalid(format!("{path}: not a regular file"))),
            Err(errno) => return Err(refused(path, errno)),
        }
        match create(path, flags) {
            // Made by another process since, or a link to nothing.
            Err(Errno::EXIST) => {}
            Err(Errno::NOTDIR) => return Err(invalid(format!("{path}: a part of it is not a directory"))),
            made => return made.map_err(|errno| refused(path, errno)),
        }
    }
    Err(invalid(format!("{path}: is a link to a file that does not exist")))
}

/// Makes the file, and its directories where they are missing.
fn create(path: &RawPath, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let mode = Mode::from_raw_mode(MODE_NEW);
    match open(path.bytes(), flags, mode) {
        Err(Errno::NOENT) => {
            let mut parents = Parents::default();
            let (dir, _) = split(path.bytes()).map_err(|_| Errno::INVAL)?;
            parents.make(dir)?;
            let file = open(path.bytes(), flags, mode)?;
            parents.keep();
            Ok(file)
        }
        made => made,
    }
}

/// Gives the file to the user of this thread, also if it is theirs: watchers expect the change.
fn own(file: &OwnedFd) -> Result<(), Errno> {
    let uid = Uid::from_raw(geteuid().as_raw());
    let gid = Gid::from_raw(getegid().as_raw());
    match fchown(file, Some(uid), Some(gid)) {
        // Another user's file that this user may write to stays the other's.
        Err(Errno::PERM) => Ok(()),
        outcome => outcome,
    }
}
