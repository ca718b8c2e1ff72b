//! Removal of files and trees. A tree may have any depth, so only one small record is kept for each
//! level.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use guest_protocol::{Delete, Failure};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, fstat, open, openat, unlinkat};
use rustix::io::Errno;
use tokio::task::yield_now;

use super::path::{RawPath, check, split};
use super::{ENTRIES_PER_TURN, exists};
use crate::failure::{Result, invalid, lookup_refused, refused};

/// Maximum depth of a tree; a level takes 16 bytes.
const LEVELS_MAX: usize = 1_000_000;
/// Maximum number of retries when the tree is changed during its removal.
const ROUNDS_MAX: usize = 1_000;
/// Size of the buffer for entries of a directory.
const ENTRIES_BYTES: usize = 16 * 1024;
const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Removes a file, a link itself, or a directory.
pub(crate) async fn delete(request: &Delete) -> Result<()> {
    let path = &check(&request.path)?;
    let (dir, name) = split(path.bytes())?;
    let parent = open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let parent = parent.map_err(|errno| lookup_refused(path, errno))?;
    let is_link_or_file = match unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) => true,
        Err(Errno::ISDIR) => false,
        Err(errno) => return Err(lookup_refused(path, errno)),
    };
    if is_link_or_file {
        // `/file/` is not the path of a file, but the trailing slash is accepted.
        return Ok(());
    }
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) if request.recursive => {
            let mut tree = ProcessTree::open(&parent, name).map_err(|errno| lookup_refused(path, errno))?;
            tree.empty(path).await?;
            match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                Ok(()) => Ok(()),
                // Another process has removed it first.
                Err(Errno::NOENT) if !exists(path.bytes()) => Ok(()),
                Err(errno) => Err(refused(path, errno)),
            }
        }
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            Err(invalid(format!("{path}: the directory is not empty; set `recursive` to remove it with its contents")))
        }
        Err(errno) => Err(lookup_refused(path, errno)),
    }
}

/// Device and inode, which tell one directory from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(dir: BorrowedFd<'_>) -> Result<Identity, Errno> {
        let stat = fstat(dir)?;
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A walk through a tree that keeps one directory open.
struct ProcessTree {
    here: OwnedFd,
    /// Directories from the top down to the current one, to check the way up.
    levels: Vec<Identity>,
    removed: usize,
}

/// Result of removing entries of a directory.
enum Found {
    /// No visible entry is left.
    Nothing,
    /// The directory with this name is not empty.
    Full(Vec<u8>),
    /// Entries were removed, and there may be more.
    More,
}

impl ProcessTree {
    fn open(parent: &OwnedFd, name: &[u8]) -> Result<ProcessTree, Errno> {
        let here = openat(parent, name, OPEN_DIR, Mode::empty())?;
        let levels = vec![Identity::of(here.as_fd())?];
        Ok(ProcessTree { here, levels, removed: 0 })
    }

    /// Removes everything below the top.
    async fn empty(&mut self, path: &RawPath) -> Result<()> {
        let mut rounds = 0;
        loop {
            yield_now().await;
            match self.remove_some().map_err(|errno| tree_refused(path, errno))? {
                Found::More => {}
                Found::Full(name) => {
                    if self.levels.len() >= LEVELS_MAX {
                        return Err(invalid(format!("{path}: is nested too deeply")));
                    }
                    match openat(&self.here, name.as_slice(), OPEN_DIR, Mode::empty()) {
                        Ok(dir) => {
                            self.levels.push(Identity::of(dir.as_fd()).map_err(|errno| tree_refused(path, errno))?);
                            self.here = dir;
                        }
                        // Replaced or removed meanwhile: try again.
                        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                            rounds += 1;
                        }
                        Err(errno) => return Err(tree_refused(path, errno)),
                    }
                }
                Found::Nothing => {
                    self.levels.pop();
                    let Some(above) = self.levels.last() else { return Ok(()) };
                    let up = openat(&self.here, "..", OPEN_DIR, Mode::empty());
                    let up = up.map_err(|errno| tree_refused(path, errno))?;
                    // A process may have moved the current directory, and the directory above it
                    // now must not be touched.
                    if Identity::of(up.as_fd()) != Ok(*above) {
                        return Err(moved(path));
                    }
                    self.here = up;
                }
            }
            if rounds > ROUNDS_MAX {
                return Err(moved(path));
            }
        }
    }

    /// Removes the entries that the kernel returns at once.
    fn remove_some(&mut self) -> Result<Found, Errno> {
        rustix::fs::seek(&self.here, rustix::fs::SeekFrom::Start(0))?;
        let mut buffer = [MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut entries = RawDir::new(&self.here, &mut buffer);
        let mut seen = 0;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_dir = entry.file_type() == FileType::Directory;
            let removed = if is_dir { Err(Errno::ISDIR) } else { unlinkat(&self.here, name, AtFlags::empty()) };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => match unlinkat(&self.here, name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Found::Full(name.to_bytes().to_vec())),
                    // A file has taken its place meanwhile.
                    Err(Errno::NOTDIR) => return Ok(Found::More),
                    Err(errno) => return Err(errno),
                },
                Err(errno) => return Err(errno),
            }
            self.removed += 1;
            seen += 1;
            if seen >= ENTRIES_PER_TURN {
                return Ok(Found::More);
            }
        }
        Ok(if seen == 0 { Found::Nothing } else { Found::More })
    }
}

fn moved(path: &RawPath) -> Failure {
    invalid(format!("{path}: was moved while it was being removed"))
}

fn tree_refused(path: &RawPath, errno: Errno) -> Failure {
    refused(format!("{path} was only partly removed: something in it"), errno)
}
