//! Writing a file whole or not at all: beside its place, then renamed.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::WriteFile;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, openat, readlinkat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::{MODE_MAX, checked, make_parents};
use crate::agent::failure::{Result, failure, invalid, refused};

/// A write; between two of them everybody else has a turn.
const PIECE_BYTES: usize = 256 * 1024;
/// Links that lead to a file, as the kernel counts them.
const LINKS_MAX: usize = 40;
/// Names that are tried for the temporary file.
const NAMES_MAX: u32 = 10_000;
/// The mode of a new file.
const MODE_NEW: u32 = 0o644;

/// Takes the content from `body`. If that breaks off, what was there stays.
pub(crate) async fn write(request: &WriteFile, body: Incoming) -> Result<()> {
    let path = checked(&request.path)?;
    let mode = request.mode.map(|mode| if mode <= MODE_MAX { Ok(mode) } else { Err(mode) }).transpose();
    let mode = mode.map_err(|mode| invalid(format!("{mode:o} is not a mode; the highest is 7777")))?;
    let place = behind_links(path)?;
    let existing = existing(&place)?;
    make_parents(&place)?;
    let new = Temporary::beside(&place)?;
    receive(&new, body).await?;
    keep(&new, existing.as_ref(), mode)?;
    new.put(&place)
}

/// Where a write to `path` ends up: a link is written through.
fn behind_links(mut path: String) -> Result<String> {
    for _ in 0..LINKS_MAX {
        let Ok(target) = readlinkat(CWD, &*path, Vec::new()) else { return Ok(path) };
        let target =
            target.into_string().map_err(|_| invalid(format!("{path} is a link to a name that is no UTF-8")))?;
        let joined = match path.rsplit_once('/') {
            Some((parent, _)) if !target.starts_with('/') => format!("{parent}/{target}"),
            _ => target,
        };
        path = checked(&joined)?;
    }
    Err(refused(&path, Errno::LOOP))
}

fn existing(place: &str) -> Result<Option<Stat>> {
    match statat(CWD, place, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(Some(stat)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            Err(invalid(format!("{place} is a directory")))
        }
        Ok(_) => Err(invalid(format!("{place} is not a regular file; only those can be written"))),
        Err(Errno::NOENT) if place.ends_with('/') => Err(invalid("the path names no file")),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(refused(place, errno)),
    }
}

async fn receive(new: &Temporary, mut body: Incoming) -> Result<()> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| invalid("the content broke off"))?;
        let Ok(bytes) = frame.into_data() else { continue };
        for piece in bytes.chunks(PIECE_BYTES) {
            let mut rest = piece;
            while !rest.is_empty() {
                let n = rustix::io::write(&new.file, rest).map_err(|errno| refused(&new.shown, errno))?;
                rest = &rest[n..];
            }
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Mode and owner: those that were asked for, else those that were there.
fn keep(new: &Temporary, existing: Option<&Stat>, mode: Option<u32>) -> Result<()> {
    let file = new.file.as_fd();
    if let Some(old) = existing {
        let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        // Best effort: an owner that this user cannot give away is not kept.
        let _ = fchown(file, Some(uid), Some(gid));
    }
    let mode = mode.or(existing.map(|old| old.st_mode & MODE_MAX)).unwrap_or(MODE_NEW);
    fchmod(file, Mode::from_raw_mode(mode)).map_err(|errno| refused(&new.shown, errno))
}

/// A file that is removed again unless it is put in its place.
struct Temporary {
    file: OwnedFd,
    path: String,
    /// The path to name in messages.
    shown: String,
    is_put: Cell<bool>,
}

thread_local! {
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

impl Temporary {
    fn beside(place: &str) -> Result<Self> {
        let parent = place.rsplit_once('/').map_or("", |(parent, _)| parent);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..NAMES_MAX {
            let count = COUNT.replace(COUNT.get().wrapping_add(1));
            let path = format!("{parent}/.tidebox-upload-{count}");
            match openat(CWD, &*path, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => return Ok(Self { file, path, shown: place.to_owned(), is_put: Cell::new(false) }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(refused(place, errno)),
            }
        }
        Err(failure(guest_protocol::FailureKind::Exhausted, format!("{parent} is full of unfinished uploads")))
    }

    fn put(&self, place: &str) -> Result<()> {
        renameat(CWD, &*self.path, CWD, place).map_err(|errno| refused(place, errno))?;
        self.is_put.set(true);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_put.get() {
            // A guest may have removed it already.
            let _ = unlinkat(CWD, &*self.path, AtFlags::empty());
        }
    }
}
