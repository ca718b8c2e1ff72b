//! Descriptions of directories, a line for each entry.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;

use guest_protocol::{FileScope, Manifest, ManifestRow};
use rustix::fs::{AtFlags, CWD, FileType, Stat, readlinkat, statat};
use sha2::{Digest as _, Sha256};

use super::long_work::{Left, Output};
use super::names::{encoded, time};
use super::path::{check, normal, trimmed};
use super::search::open_regular;
use super::walk::{Entry, Walk};
use crate::failure::{Result, invalid, lookup_refused};

/// Maximum size of the names of files with several of them that are kept, in bytes. Of further files,
/// each name is a file of its own.
const SHARED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Bytes of content between two signs of life.
const SILENT_BYTES_MAX: u64 = 64 * 1024 * 1024;
const MODE_MAX: u32 = 0o7777;

/// Describes a directory and all that is below it, each directory before its entries.
///
/// # Errors
/// Before the head: not found for the path, invalid if it is no directory. After it, too many directories
/// end the description before its last line.
pub(crate) fn manifest(request: &Manifest, output: &mut Output) -> Result<()> {
    let path = &check(&request.path)?;
    let all = FileScope::all(&request.path);
    let stat = statat(CWD, path.bytes(), AtFlags::empty()).map_err(|errno| lookup_refused(path, errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(invalid(format!("{path}: not a directory")));
    }
    let mut walk = Walk::begin(&all)?;
    let above = trimmed(&normal(path.bytes())).len() + 1;
    let mut describing = Describing {
        output,
        above,
        checksum: request.checksum,
        shared: HashMap::new(),
        shared_bytes: 0,
        silent: 0,
        entries: 0,
        unreadable: 0,
    };
    match describing.all(&mut walk, &stat) {
        Ok(outcome) => outcome,
        // A caller that has left ends the work.
        Err(Left) => Ok(()),
    }
}

struct Describing<'a> {
    output: &'a mut Output,
    /// Bytes of each path that are not below the directory.
    above: usize,
    checksum: bool,
    /// Encoded names of files with several of them, by device and inode.
    shared: HashMap<(u64, u64), String>,
    shared_bytes: usize,
    /// Bytes that were read since something was sent.
    silent: u64,
    entries: u64,
    unreadable: u64,
}

impl Describing<'_> {
    fn all(&mut self, walk: &mut Walk, root: &Stat) -> Result<Result<()>, Left> {
        self.output.begin()?;
        self.row(&ManifestRow { path: Some(String::new()), ..row("directory", root) })?;
        for entry in walk.by_ref() {
            match entry {
                Ok(entry) => self.entry(&entry)?,
                Err(failure) => return Ok(Err(failure)),
            }
        }
        let entries = Some(self.entries);
        let unreadable = Some(self.unreadable + walk.unreadable);
        self.row(&ManifestRow { kind: "end".to_owned(), entries, unreadable, ..ManifestRow::default() })?;
        self.output.flush()?;
        Ok(Ok(()))
    }

    fn row(&mut self, row: &ManifestRow) -> Result<(), Left> {
        self.entries += 1;
        self.output.row(row)
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), Left> {
        self.output.check()?;
        // What is gone since its directory was read does not belong to it.
        let Ok(stat) = statat(CWD, entry.path.as_slice(), AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        let path = encoded(entry.path.get(self.above..).unwrap_or_default());
        let row = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => row("directory", &stat),
            FileType::Symlink => {
                let Ok(target) = readlinkat(CWD, entry.path.as_slice(), Vec::new()) else { return Ok(()) };
                ManifestRow { target: Some(encoded(target.as_bytes())), ..row("symlink", &stat) }
            }
            FileType::RegularFile => {
                let same_as = self.same_as(&path, &stat);
                let size = Some(u64::try_from(stat.st_size).unwrap_or(0));
                // By another name it has been read already.
                let sha256 = if self.checksum && same_as.is_none() { self.sha256(entry)? } else { None };
                ManifestRow { size, same_as, sha256, ..row("file", &stat) }
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => row("other", &stat),
        };
        self.row(&ManifestRow { path: Some(path), ..row })
    }

    /// Returns an earlier name of the same file.
    fn same_as(&mut self, path: &str, stat: &Stat) -> Option<String> {
        if stat.st_nlink < 2 {
            return None;
        }
        let id = (stat.st_dev, stat.st_ino);
        let first = self.shared.get(&id).cloned();
        if first.is_none() && self.shared_bytes < SHARED_BYTES_MAX {
            self.shared_bytes += path.len() + size_of::<((u64, u64), String)>();
            self.shared.insert(id, path.to_owned());
        }
        first
    }

    /// Returns the digest of a file; `None` if it cannot be read.
    fn sha256(&mut self, entry: &Entry) -> Result<Option<String>, Left> {
        let Some((file, _)) = open_regular(entry) else {
            self.unreadable += 1;
            return Ok(None);
        };
        let mut file = File::from(file);
        let mut hash = Sha256::new();
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let read = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.unreadable += 1;
                    return Ok(None);
                }
            };
            hash.update(buffer.get(..read).unwrap_or_default());
            self.silent += read as u64;
            if self.silent >= SILENT_BYTES_MAX {
                self.silent = 0;
                self.output.bytes(b"\n")?;
                self.output.flush()?;
            }
        }
        Ok(Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

fn row(kind: &str, stat: &Stat) -> ManifestRow {
    ManifestRow {
        kind: kind.to_owned(),
        mode: Some(format!("{:04o}", stat.st_mode & MODE_MAX)),
        mtime: Some(time(stat)),
        ..ManifestRow::default()
    }
}
