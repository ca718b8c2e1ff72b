//! The image as it grows: written in order, but for places that were left free before.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::{Errno, read, retry_on_intr};

use super::ahead::read_at;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 128 * 1024;
/// Capacities of buffers that are used again.
const REUSED: RangeInclusive<usize> = WRITE_BYTES..=4 * WRITE_BYTES;
/// Number of pieces that wait to be written, so that the trees are read on during a slow write.
const WAITING_MAX: usize = 64;
/// Bytes after which what is written is also sent to the disk for the first time, while the trees are read
/// on: the caller's own sync has little left to wait for. Doubles up to [`SYNC_BYTES_MAX`], since each takes
/// the disk a while.
const SYNC_BYTES: usize = 1024 * 1024;
/// Most such bytes.
const SYNC_BYTES_MAX: usize = 12 * 1024 * 1024;

/// Bytes, and their place in the image.
type Piece = (u64, Vec<u8>);

/// Has `fill` fill the image `file`, which another thread writes to meanwhile. Returns when all is
/// written.
pub(crate) fn write_behind<T>(file: &File, fill: impl FnOnce(&mut Output<'_>) -> io::Result<T>) -> io::Result<T> {
    thread::scope(|scope| {
        let (pieces, waiting) = sync_channel(WAITING_MAX);
        let (emptied, buffers) = sync_channel(WAITING_MAX);
        let writer = thread::Builder::new().name("erofs-write".to_owned());
        let writer = writer.spawn_scoped(scope, move || drain(file, waiting, &emptied))?;
        let mut output = Output { file, pieces, buffers, held: Vec::with_capacity(2 * WRITE_BYTES), held_at: 0 };
        let filled = fill(&mut output);
        drop(output);
        // Its error is the cause of the one that the sender saw.
        writer.join().unwrap_or_else(|_| Err(io::Error::other("the image writer stopped")))?;
        filled
    })
}

/// Writes the pieces in their order until their sender is gone, and gives their memory back.
fn drain(file: &File, pieces: Receiver<Piece>, emptied: &SyncSender<Vec<u8>>) -> io::Result<()> {
    let mut unsynced = 0;
    let mut due = SYNC_BYTES;
    for (at, mut bytes) in pieces {
        file.write_all_at(&bytes, at)?;
        unsynced += bytes.len();
        bytes.clear();
        // A small one would grow, and too many of them would hold as much as the image.
        if REUSED.contains(&bytes.capacity()) {
            let _ = emptied.try_send(bytes);
        }
        if unsynced >= due {
            file.sync_data()?;
            unsynced = 0;
            due = (2 * due).min(SYNC_BYTES_MAX);
        }
    }
    Ok(())
}

/// An image that is being written.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    file: &'a File,
    /// Way to the thread that writes.
    pieces: SyncSender<Piece>,
    /// Memory that comes back from it: the kernel clears each page of new memory.
    buffers: Receiver<Vec<u8>>,
    /// Bytes that are not in the file yet.
    held: Vec<u8>,
    /// Place of the first of them.
    held_at: u64,
}

impl Output<'_> {
    /// Returns the place of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.held_at + self.held.len() as u64
    }

    /// Appends zeros up to a multiple of `unit`, which is a power of two.
    pub(crate) fn align(&mut self, unit: usize) -> io::Result<()> {
        let ahead = self.at().wrapping_neg() & (unit as u64 - 1);
        self.leave(usize::try_from(ahead).unwrap_or(0)).map(drop)
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.held.extend_from_slice(bytes);
        self.write_much()
    }

    /// Appends zeros, and returns their place.
    pub(crate) fn leave(&mut self, count: usize) -> io::Result<u64> {
        let at = self.at();
        if count >= WRITE_BYTES {
            self.flush()?;
            self.held_at += count as u64;
            return Ok(at);
        }
        self.held.resize(self.held.len() + count, 0);
        self.write_much()?;
        Ok(at)
    }

    /// Puts bytes in the place of earlier ones.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match at.checked_sub(self.held_at) {
            Some(ahead) => {
                let ahead = usize::try_from(ahead).map_err(io::Error::other)?;
                self.held[ahead..ahead + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            None => {
                // It may end in what is held.
                self.flush()?;
                let mut at = at;
                for piece in bytes.chunks(WRITE_BYTES) {
                    self.send((at, piece.to_vec()))?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
        }
    }

    /// Appends `size` bytes of a file from `from` on, and zeros in the place of those it lacks.
    pub(crate) fn append_file(&mut self, file: BorrowedFd<'_>, from: u64, size: usize) -> io::Result<()> {
        let begin = self.held.len();
        self.held.resize(begin + size, 0);
        read_at(file, from, &mut self.held[begin..])?;
        self.write_much()
    }

    /// Appends the first `size` bytes of a file that is large or has holes, which are holes of the image.
    pub(crate) fn append_large(&mut self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        self.flush()?;
        let begin = self.held_at;
        let end = begin.checked_add(size).ok_or(io::ErrorKind::FileTooLarge)?;
        let mut at = 0;
        while at < size {
            let data = match seek(file, SeekFrom::Data(at)) {
                Ok(data) => data.min(size),
                // A hole up to the end.
                Err(Errno::NXIO) => break,
                // Without holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(errno) => return Err(errno.into()),
            };
            let hole = match seek(file, SeekFrom::Hole(data)) {
                Ok(hole) => hole.min(size),
                Err(_) => size,
            };
            self.copy(file, data, begin + data, hole - data)?;
            at = hole;
        }
        self.held_at = end;
        Ok(())
    }

    /// Copies a part of a file into the image. What the file lacks stays a hole.
    fn copy(&self, file: BorrowedFd<'_>, from: u64, to: u64, count: u64) -> io::Result<()> {
        let mut from_at = from;
        let mut to_at = to;
        while from_at < from + count {
            let left = usize::try_from(from + count - from_at).unwrap_or(usize::MAX);
            let copied =
                retry_on_intr(|| copy_file_range(file, Some(&mut from_at), self.file.as_fd(), Some(&mut to_at), left));
            match copied {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // Between two kinds of file systems.
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    seek(file, SeekFrom::Start(from_at))?;
                    return self.copy_by_hand(file, to_at, from + count - from_at);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn copy_by_hand(&self, file: BorrowedFd<'_>, mut to: u64, mut count: u64) -> io::Result<()> {
        let mut buffer = vec![0; WRITE_BYTES];
        while count > 0 {
            let most = usize::try_from(count).unwrap_or(usize::MAX).min(WRITE_BYTES);
            let got = retry_on_intr(|| read(file, &mut buffer[..most]))?;
            if got == 0 {
                return Ok(());
            }
            self.file.write_all_at(&buffer[..got], to)?;
            (to, count) = (to + got as u64, count - got as u64);
        }
        Ok(())
    }

    fn write_much(&mut self) -> io::Result<()> {
        if self.held.len() < WRITE_BYTES { Ok(()) } else { self.flush() }
    }

    /// Has all that is held written into the file.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let next = self.buffers.try_recv().unwrap_or_else(|_| Vec::with_capacity(2 * WRITE_BYTES));
        let piece = std::mem::replace(&mut self.held, next);
        let begin = self.held_at;
        self.held_at += piece.len() as u64;
        self.send((begin, piece))
    }

    fn send(&self, piece: Piece) -> io::Result<()> {
        self.pieces.send(piece).map_err(|_| io::Error::other("the image writer failed"))
    }
}
