//! Files that are checked before they are used.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, SeekFrom, fallocate, openat, seek};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

/// Bytes that are looked at together: a page of memory, and a block of most file systems.
const PAGE_BYTES: usize = 4096;
const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
/// Bytes of one read.
const PIECE_BYTES: usize = 1 << 20;

/// Opens a file that a machine's process has written. A link or anything else in its place is refused.
pub(super) fn open_written(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Frees the space of those pages of a file that are all zeros, and returns the digest of its content.
pub(super) fn seal(file: &File) -> io::Result<String> {
    digest_of(file, |start, end| {
        match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, end - start) {
            // A file system without holes only takes more space.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    })
}

/// Returns the digest of the content of a file. Where its holes are makes no difference.
pub(super) fn digest(path: &Path) -> io::Result<String> {
    digest_of(&File::open(path)?, |_, _| Ok(()))
}

/// Reads a file, and calls `zeros` for the ranges that hold nothing else.
fn digest_of(file: &File, zeros: impl Fn(u64, u64) -> io::Result<()>) -> io::Result<String> {
    let size = file.metadata()?.len();
    let mut sha = Sha256::new();
    sha.update(size.to_le_bytes());
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < size {
        let (start, end) = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => (start, seek(file, SeekFrom::Hole(start))?.min(size)),
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (at, size),
            Err(errno) => return Err(errno.into()),
        };
        at = start - start % PAGE_BYTES as u64;
        // The first byte of a range of zeros that goes on.
        let mut empty_from = None;
        while at < end {
            let wanted = usize::try_from(size - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let Some(piece) = piece.get_mut(..wanted) else { break };
            file.read_exact_at(piece, at)?;
            for page in piece.chunks(PAGE_BYTES) {
                if ZEROS.starts_with(page) {
                    empty_from.get_or_insert(at);
                } else {
                    if let Some(from) = empty_from.take() {
                        zeros(from, at)?;
                    }
                    sha.update(at.to_le_bytes());
                    sha.update(page);
                }
                at += page.len() as u64;
            }
        }
        if let Some(from) = empty_from {
            zeros(from, at)?;
        }
    }
    Ok(sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Identity of a file, and of its content as far as the file system knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
}

impl FileId {
    pub(super) fn of(path: &Path) -> io::Result<FileId> {
        let found = path.symlink_metadata()?;
        Ok(FileId {
            place: (found.dev(), found.ino()),
            size: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_file_is_not_opened() {
        let temp = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| temp.path().join(name));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(open_written(&file).is_ok());
        assert!(open_written(&link).is_err() && open_written(temp.path()).is_err());
    }

    #[test]
    fn zeros_take_no_space_and_the_digest_knows_every_bit_and_the_size() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("memory");
        let mut content = vec![0; 3 << 20];
        content[(1 << 20) + 5] = 1;
        *content.last_mut().unwrap() = 2;
        fs::write(&path, &content).unwrap();
        let sealed = seal(&open_written(&path).unwrap()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content);
        let blocks = fs::metadata(&path).unwrap().blocks();
        assert!(blocks * 512 <= 64 << 10, "{blocks} blocks");
        assert_eq!(digest(&path).unwrap(), sealed);

        let whole = temp.path().join("whole");
        fs::write(&whole, &content).unwrap();
        assert_eq!(digest(&whole).unwrap(), sealed, "without a hole");
        for change in [0, 1 << 20, (2 << 20) + 77, content.len() - 1] {
            content[change] ^= 4;
            fs::write(&whole, &content).unwrap();
            assert_ne!(digest(&whole).unwrap(), sealed, "{change}");
            content[change] ^= 4;
        }
        for size in [content.len() - 1, content.len() + 1, 5000, 0] {
            content.resize(size, 0);
            fs::write(&whole, &content).unwrap();
            assert_ne!(digest(&whole).unwrap(), sealed, "{size}");
        }
    }
}
