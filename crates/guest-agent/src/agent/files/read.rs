//! Reading a file as the body of an answer.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use guest_protocol::{FileInfo, ReadFile};
use hyper::body::{Body, Frame};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::{checked, described};
use crate::agent::failure::{Result, invalid, refused};

/// A read; between two of them everybody else has a turn.
const PIECE_BYTES: usize = 256 * 1024;

/// Part of a regular file.
pub(crate) struct Content {
    file: OwnedFd,
    offset: u64,
    left: u64,
    path: String,
}

/// Opens a regular file; links are followed, inside the box.
pub(crate) fn read(request: &ReadFile) -> Result<(FileInfo, Content)> {
    let path = checked(&request.path)?;
    // Not blocking: a FIFO without a writer must not stop us for ever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let not_regular = || invalid(format!("{path} is not a regular file; only those can be read"));
    let file = match openat(CWD, &*path, flags, Mode::empty()) {
        Ok(file) => file,
        // A socket, or a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Err(not_regular()),
        Err(errno) => return Err(refused(&path, errno)),
    };
    let stat = fstat(&file).map_err(|errno| refused(&path, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(invalid(format!("{path} is a directory; list it instead"))),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(not_regular()),
    }
    let info = described(&path, &stat);
    // What is appended meanwhile is not ours. Files of the kernel say that they
    // are empty and are not.
    let rest = if info.size == 0 { u64::MAX } else { info.size.saturating_sub(request.offset) };
    let left = request.length.map_or(rest, |length| length.min(rest));
    Ok((info, Content { file, offset: request.offset, left, path }))
}

impl Body for Content {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let wanted = usize::try_from(self.left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let mut piece = BytesMut::zeroed(wanted);
        match rustix::io::pread(&self.file, &mut piece[..], self.offset) {
            Ok(0) => {
                self.left = 0;
                Poll::Ready(None)
            }
            Ok(n) => {
                piece.truncate(n);
                self.offset += n as u64;
                self.left -= n as u64;
                Poll::Ready(Some(Ok(Frame::data(piece.freeze()))))
            }
            Err(errno) => {
                self.left = 0;
                Poll::Ready(Some(Err(std::io::Error::other(format!("{}: {errno}", self.path)))))
            }
        }
    }
}
