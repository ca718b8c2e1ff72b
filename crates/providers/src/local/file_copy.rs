//! Copy of the content of one file, with its holes, and with shared blocks where the file system can.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use host_disk::write_sparse;
use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Size up to which a file is read and written, which takes fewer system calls.
const SMALL_BYTES: u64 = 64 * 1024;
/// Bytes that are read at once where the kernel does not copy.
const PIECE_BY_HAND_BYTES: usize = 256 * 1024;
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
        let mut file = File::from(to.try_clone()?);
        write_sparse(&mut file, &content)?;
        return file.set_len(content.len() as u64);
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
    let mut in_at = start;
    let mut out_at = start;
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
    let mut from = File::from(from);
    let mut to = File::from(to.try_clone()?);
    let mut piece = vec![0; PIECE_BY_HAND_BYTES];
    loop {
        let mut filled = 0;
        while filled < piece.len() {
            match io::Read::read(&mut from, &mut piece[filled..])? {
                0 => break,
                got => filled += got,
            }
        }
        if filled == 0 {
            // The length is set already, also that of zeros at the end.
            return Ok(());
        }
        write_sparse(&mut to, &piece[..filled])?;
    }
}
