//! Copy of the content of one file, with its holes, and with shared blocks where the file system can.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Size up to which a file is read and written, which takes fewer system calls.
const SMALL_BYTES: u64 = 64 * 1024;
/// Most bytes of one `copy_file_range` call.
const PIECE_BYTES: usize = 1 << 30;

/// Clones the file, and returns whether the copy shares its blocks with the original.
pub(crate) fn clone(to: &OwnedFd, from: &OwnedFd, reflinks: &mut bool) -> bool {
    match ioctl_ficlone(to, from) {
        Ok(()) => true,
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
            *reflinks = false;
            false
        }
        Err(_) => false,
    }
}

/// Copies the ranges that hold data, so that holes stay holes.
pub(crate) fn copy_content(from: OwnedFd, to: &OwnedFd, size: u64) -> io::Result<()> {
    if size <= SMALL_BYTES {
        let mut content = Vec::new();
        io::Read::read_to_end(&mut File::from(from), &mut content)?;
        return io::Write::write_all(&mut File::from(to.try_clone()?), &content);
    }
    ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let (start, end) = match seek(&from, SeekFrom::Data(at)) {
            Ok(start) => (start, seek(&from, SeekFrom::Hole(start))?.min(size)),
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (at, size),
            Err(errno) => return Err(errno.into()),
        };
        if !copy_range(&from, to, start, end)? {
            return copy_by_hand(from, to, start);
        }
        at = end;
    }
    Ok(())
}

/// Copies a range in the kernel. Returns false if the kernel cannot.
fn copy_range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> io::Result<bool> {
    let (mut in_at, mut out_at) = (start, start);
    while in_at < end {
        let length = usize::try_from(end - in_at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        match copy_file_range(from.as_fd(), Some(&mut in_at), to.as_fd(), Some(&mut out_at), length) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) if in_at == start => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

fn copy_by_hand(from: OwnedFd, to: &OwnedFd, start: u64) -> io::Result<()> {
    seek(&from, SeekFrom::Start(start))?;
    seek(to, SeekFrom::Start(start))?;
    io::copy(&mut File::from(from), &mut File::from(to.try_clone()?)).map(drop)
}
