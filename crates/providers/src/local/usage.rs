//! Disk usage of a box, measured while the box changes it.

mod held;

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};

use crate::DiskUsage;

/// Unit in which blocks are counted, on every file system.
const BLOCK_BYTES: u64 = 512;
/// Most entries counted: enough to see that the box fills the disk, and an end for a box that
/// creates entries during the count. The count so far is returned.
const ENTRIES_MAX: u64 = 2_000_000;
/// Limit for counting one box, after which the count so far is returned.
const COUNTING_MAX: Duration = Duration::from_secs(4);
/// Path length above which a directory on the way is opened to shorten it: half of the kernel's
/// limit, since one name can be 255 bytes.
const PATH_BYTES_MAX: usize = 2048;

/// Measures the tree at `path`, which a box may be changing. `first` is the box's first process,
/// if the files that its processes hold open lie there too: a deleted file keeps its blocks until
/// the last process closes it.
pub(crate) fn usage(path: &Path, first: Option<u32>) -> io::Result<DiskUsage> {
    let metadata = fs::symlink_metadata(path)?;
    let mut count = Count::new(Instant::now() + COUNTING_MAX);
    if !metadata.is_dir() {
        return Ok(DiskUsage { bytes: metadata.blocks() * BLOCK_BYTES, entries: 1, is_cut: false });
    }
    let root =
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    count.tree(Arc::new(root));
    if let Some(first) = first {
        held::count(&mut count, first, metadata.dev());
    }
    Ok(DiskUsage { bytes: count.blocks.saturating_mul(BLOCK_BYTES), entries: count.entries, is_cut: count.is_cut })
}

/// Sum of the entries counted so far.
struct Count {
    blocks: u64,
    entries: u64,
    is_cut: bool,
    /// Device and inode of entries that may be met again under another name.
    met: HashSet<(u64, u64)>,
    deadline: Instant,
}

impl Count {
    fn new(deadline: Instant) -> Count {
        Count { blocks: 0, entries: 0, is_cut: false, met: HashSet::new(), deadline }
    }

    /// Counts an inode once.
    fn add(&mut self, stat: &Stat) {
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_dir && stat.st_nlink != 1 && !self.met.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
        self.entries += 1;
        self.blocks = self.blocks.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0));
    }

    /// Returns whether a limit of the count is reached.
    fn is_over(&mut self) -> bool {
        self.is_cut = self.is_cut || self.entries >= ENTRIES_MAX || Instant::now() >= self.deadline;
        self.is_cut
    }

    fn tree(&mut self, root: Arc<OwnedFd>) {
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn files_below_any_depth_are_counted_and_links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("layers");
        fs::create_dir(&root).unwrap();
        let (inner, outer) = (root.join("inner"), root.join("outer"));
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), vec![1; 1 << 20]).unwrap();
        let name = "n".repeat(200);
        for _ in 0..100 {
            fs::create_dir(&outer).unwrap();
            fs::rename(&inner, outer.join(&name)).unwrap();
            fs::rename(&outer, &inner).unwrap();
        }
        std::os::unix::fs::symlink("/usr", root.join("link")).unwrap();
        let found = usage(&root, None).unwrap();
        assert!((1 << 20..4 << 20).contains(&found.bytes), "{found:?}");
        assert_eq!((found.entries, found.is_cut), (103, false));
        crate::removal::remove_tree(&root).unwrap();
    }

    #[test]
    fn a_file_with_many_names_is_counted_once() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("file"), vec![1; 1 << 20]).unwrap();
        (0..50).for_each(|n| fs::hard_link(temp.path().join("file"), temp.path().join(n.to_string())).unwrap());
        let found = usage(temp.path(), None).unwrap();
        assert!((1 << 20..2 << 20).contains(&found.bytes) && found.entries == 1, "{found:?}");
    }

    #[test]
    fn what_has_lost_its_name_counts_while_it_is_open_or_mapped_and_memory_does_not() {
        use std::io::{BufRead, BufReader, Write};
        let temp = tempfile::tempdir().unwrap();
        let script = "import mmap, os, sys\n\
            f = open('a', 'wb'); f.write(b'x' * (3 << 20)); f.flush(); os.unlink('a')\n\
            g = open('b', 'w+b'); g.write(b'x' * (5 << 20)); g.flush(); os.unlink('b')\n\
            m = mmap.mmap(g.fileno(), 5 << 20); os.close(g.fileno())\n\
            d = os.memfd_create('d'); os.write(d, b'x' * (7 << 20))\n\
            print('ready', flush=True); sys.stdin.readline(); os._exit(0)";
        let mut holder = std::process::Command::new("python3")
            .args(["-c", script])
            .current_dir(temp.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let own = std::process::id();
        let (none, all) = (usage(temp.path(), None).unwrap(), usage(temp.path(), Some(own)).unwrap());
        holder.stdin.take().unwrap().write_all(b"\n").unwrap();
        holder.wait().unwrap();
        assert_eq!(line, "ready\n");
        assert_eq!((none.bytes, none.entries), (0, 0));
        // Reading `map_files` requires root.
        let expected = if rustix::process::geteuid().is_root() { (8, 2) } else { (3, 1) };
        assert_eq!((all.bytes >> 20, all.entries), expected, "{all:?}");
    }
}
