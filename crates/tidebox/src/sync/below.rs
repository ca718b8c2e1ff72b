//! Changes below a directory of this machine. Each step of a path is a directory that is no link, opened in
//! the one before, so that none leads out, whatever the paths are and whichever program changes the directory meanwhile.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, chmodat, fchmod, futimens, linkat, mkdirat,
    openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::listing::{Entry, Kind, Time};
use super::steps::{TEMPORARY, open_steps, split};

/// Mode bits that files from a box get here. The others, set-user-id, set-group-id and sticky, would be this
/// user's.
pub const MODE_TAKEN: u32 = 0o777;
/// Bytes of a file that are written at once.
const PIECE_BYTES: usize = 256 * 1024;

/// A directory whose content is changed.
#[derive(Debug)]
pub struct Below {
    root: OwnedFd,
    /// Directory that was used last, with its path.
    here: Option<(Vec<u8>, OwnedFd)>,
    temporaries: u64,
}

impl Below {
    pub fn new(root: OwnedFd) -> Self {
        Self { root, here: None, temporaries: 0 }
    }

    fn dir(&mut self, dir: &[u8]) -> io::Result<&OwnedFd> {
        if self.here.as_ref().is_none_or(|(here, _)| here != dir) {
            self.here = Some((dir.to_vec(), open_steps(&self.root, dir)?));
        }
        Ok(self.here.as_ref().map_or(&self.root, |(_, opened)| opened))
    }

    /// Removes a file, a link or an empty directory. Returns false if nothing is there.
    pub fn remove(&mut self, path: &[u8], is_dir: bool) -> io::Result<bool> {
        let (above, name) = split(path);
        self.here = self.here.take().filter(|(here, _)| here != path);
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(self.dir(above)?, name, flags) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a directory, for this user alone until its mode is set.
    pub fn make_dir(&mut self, path: &[u8]) -> io::Result<()> {
        let (above, name) = split(path);
        Ok(mkdirat(self.dir(above)?, name, Mode::RWXU)?)
    }

    /// Makes a link, or replaces what is there by it.
    pub fn make_link(&mut self, path: &[u8], target: &[u8], mtime: Time) -> io::Result<()> {
        let (above, name) = split(path);
        let temporary = self.temporary();
        let dir = self.dir(above)?;
        symlinkat(target, dir, temporary.as_str())?;
        // A file system without times of links is one with less.
        let _ = utimensat(dir, temporary.as_str(), &times(mtime), AtFlags::SYMLINK_NOFOLLOW);
        placed(dir, &temporary, name)
    }

    /// Gives a file another name.
    pub fn make_name(&mut self, path: &[u8], first: &[u8]) -> io::Result<()> {
        let (above, name) = split(path);
        let (first_above, first_name) = split(first);
        let temporary = self.temporary();
        let first_dir = open_steps(&self.root, first_above)?;
        let dir = self.dir(above)?;
        let is_file = statat(&first_dir, first_name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        if !is_file {
            return Err(Errno::NOENT.into());
        }
        linkat(&first_dir, first_name, dir, temporary.as_str(), AtFlags::empty())?;
        let placed = placed(dir, &temporary, name);
        // Two names of one file are not renamed to each other.
        let _ = unlinkat(dir, temporary.as_str(), AtFlags::empty());
        placed
    }

    /// Writes a file under another name, and gives it its own once it has all its `size` bytes.
    pub fn write(
        &mut self,
        path: &[u8],
        (mode, mtime): (u32, Time),
        size: u64,
        content: &mut impl Read,
    ) -> io::Result<()> {
        let (above, name) = split(path);
        let temporary = self.temporary();
        let dir = self.dir(above)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(dir, temporary.as_str(), flags, Mode::RUSR | Mode::WUSR)?);
        match fill(&mut file, content, size).and_then(|()| set_open(&file, mode, mtime)) {
            Ok(()) => placed(dir, &temporary, name),
            Err(error) => {
                let _ = unlinkat(dir, temporary.as_str(), AtFlags::empty());
                Err(error)
            }
        }
    }

    /// Sets mode and time. A link is not followed, and has no mode.
    pub fn set(&mut self, path: &[u8], entry: &Entry) -> io::Result<()> {
        if entry.kind == Kind::Directory {
            return set_open(open_steps(&self.root, path)?, entry.mode, entry.mtime);
        }
        let (above, name) = split(path);
        let dir = self.dir(above)?;
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            // By a handle that is no link, since the call by name would follow one.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = openat(dir, name, flags, Mode::empty())?;
            let is_file = FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode) == FileType::RegularFile;
            if !is_file {
                return Err(Errno::LOOP.into());
            }
            let by_handle = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle));
            chmodat(rustix::fs::CWD, by_handle, Mode::from_raw_mode(entry.mode & MODE_TAKEN), AtFlags::empty())?;
        }
        Ok(utimensat(dir, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn temporary(&mut self) -> String {
        self.temporaries += 1;
        // The process and a count: of two runs at once, neither takes the other's.
        let prefix = String::from_utf8_lossy(TEMPORARY);
        format!("{prefix}{:08x}{:08x}", std::process::id(), self.temporaries as u32)
    }
}

/// Copies the content, which must have at least `size` bytes.
fn fill(file: &mut File, content: &mut impl Read, size: u64) -> io::Result<()> {
    let mut left = size;
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = content.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        file.write_all(&buffer[..read])?;
        left = left.saturating_sub(read as u64);
    }
    if left > 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Sets mode and time of an open file or directory.
fn set_open(opened: impl AsFd, mode: u32, mtime: Time) -> io::Result<()> {
    fchmod(&opened, Mode::from_raw_mode(mode & MODE_TAKEN))?;
    Ok(futimens(&opened, &times(mtime))?)
}

fn placed(dir: &OwnedFd, temporary: &str, name: &[u8]) -> io::Result<()> {
    renameat(dir, temporary, dir, name).map_err(|errno| {
        let _ = unlinkat(dir, temporary, AtFlags::empty());
        errno.into()
    })
}

fn times((seconds, nanoseconds): Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}
