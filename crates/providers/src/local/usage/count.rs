//! Count of the entries of a tree, while a box changes it.

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};

/// Most entries counted: enough to see that the box fills the disk, and an end for a box that
/// creates entries during the count. The count so far is returned.
const ENTRIES_MAX: u64 = 2_000_000;
/// Limit for counting one box, after which the count so far is returned.
const COUNTING_MAX: Duration = Duration::from_secs(4);
/// Path length above which a directory on the way is opened to shorten it: half of the kernel's
/// limit, since one name can be 255 bytes.
const PATH_BYTES_MAX: usize = 2048;

/// Sum of the entries counted so far.
pub(super) struct Count {
    pub(super) blocks: u64,
    pub(super) entries: u64,
    pub(super) is_cut: bool,
    /// Device and inode of entries that may be met again under another name.
    met: HashSet<(u64, u64)>,
    deadline: Instant,
}

impl Count {
    pub(super) fn new() -> Count {
        let deadline = Instant::now() + COUNTING_MAX;
        Count { blocks: 0, entries: 0, is_cut: false, met: HashSet::new(), deadline }
    }

    /// Counts an inode once.
    pub(super) fn add(&mut self, stat: &Stat) {
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_dir && stat.st_nlink != 1 && !self.met.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
        self.entries += 1;
        self.blocks = self.blocks.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0));
    }

    /// Returns whether a limit of the count is reached.
    pub(super) fn is_over(&mut self) -> bool {
        self.is_cut = self.is_cut || self.entries >= ENTRIES_MAX || Instant::now() >= self.deadline;
        self.is_cut
    }

    /// Counts everything below a directory.
    pub(super) fn tree(&mut self, root: Arc<OwnedFd>) {
        let mut waiting = VecDeque::from([(root, PathBuf::from("."))]);
        while let Some((base, path)) = waiting.pop_back() {
            // Entries that the box has removed meanwhile take nothing.
            let Ok(dir) = open_below(&base, &path) else { continue };
            let (base, path) = if path.as_os_str().len() > PATH_BYTES_MAX {
                let Ok(dir) = dir.try_clone() else { continue };
                (Arc::new(dir), PathBuf::from("."))
            } else {
                (base, path)
            };
            let Ok(list) = Dir::read_from(&dir) else { continue };
            for entry in list.flatten() {
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                if self.is_over() {
                    return;
                }
                let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                self.add(&stat);
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    waiting.push_back((Arc::clone(&base), path.join(std::ffi::OsStr::from_bytes(name.to_bytes()))));
                }
            }
        }
    }
}

/// Opens a directory; neither a link nor `..` leads out of the tree.
fn open_below(base: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(
        base,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
}
