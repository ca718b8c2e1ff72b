//! Reading of files.

use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use bytes::Bytes;
use guest_protocol::{FileInfo, ReadFile};
use rustix::fs::{FileType, Mode, OFlags, fstat, open as open_file};
use rustix::io::Errno;
use tokio::sync::OwnedSemaphorePermit;

use super::describe;
use super::path::{check, normal};
use crate::failure::{Result, invalid, lookup_refused, refused};

/// Maximum size of a piece; other tasks have their turn after each.
pub(crate) const PIECE_BYTES: usize = 256 * 1024;
/// Highest offset that the kernel accepts.
const OFFSET_MAX: u64 = i64::MAX.cast_unsigned();

/// The part of a file that was not read yet.
#[derive(Debug)]
pub(crate) struct Content {
    file: OwnedFd,
    offset: u64,
    left: u64,
    piece_bytes: usize,
    /// True if other tasks have had their turn since the last piece.
    rested: bool,
    _permit: OwnedSemaphorePermit,
}

/// Opens a file without blocking, and only if it is a regular one. It is read in pieces of
/// `piece_bytes`.
pub(crate) fn open(
    request: &ReadFile,
    piece_bytes: usize,
    permit: OwnedSemaphorePermit,
) -> Result<(FileInfo, Content)> {
    let path = &check(&request.path)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open_file(path.bytes(), flags, Mode::empty()).map_err(|errno| lookup_refused(path, errno))?;
    let stat = fstat(&file).map_err(|errno| refused(path, errno))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Directory {
        return Err(refused(path, Errno::ISDIR));
    }
    if kind != FileType::RegularFile {
        return Err(invalid(format!("{path}: not a regular file")));
    }
    // No file is longer, so a later offset reads nothing.
    let offset = request.offset.min(OFFSET_MAX);
    let info = describe(&normal(path.bytes()), &stat, &file, b"");
    // Virtual files of the kernel have the size 0 but content. All others end where they ended when
    // they were described.
    let rest = if info.size == 0 { OFFSET_MAX } else { info.size.saturating_sub(offset) };
    let left = request.length.unwrap_or(u64::MAX).min(rest);
    Ok((info, Content { file, offset, left, piece_bytes, rested: true, _permit: permit }))
}

impl Content {
    /// Returns the next piece; `None` at the end.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if !std::mem::take(&mut self.rested) {
            self.rested = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let len = usize::try_from(self.left).unwrap_or(self.piece_bytes).min(self.piece_bytes);
        let mut piece = Vec::with_capacity(len);
        match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut piece), self.offset) {
            Ok(0) => {
                self.left = 0;
                Poll::Ready(None)
            }
            Ok(read) => {
                let read = u64::try_from(read).unwrap_or(self.left);
                self.offset += read;
                self.left = self.left.saturating_sub(read);
                Poll::Ready(Some(Ok(Bytes::from(piece))))
            }
            Err(errno) => {
                self.left = 0;
                Poll::Ready(Some(Err(errno.into())))
            }
        }
    }
}
