//! Disk usage of a box, measured while the box changes it.

mod count;
mod held;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::DiskUsage;

use count::Count;

/// Unit in which blocks are counted, on every file system.
const BLOCK_BYTES: u64 = 512;

/// Measures the tree at `path`, which a box may be changing. `first` is the box's first process,
/// if the files that its processes hold open lie there too: a deleted file keeps its blocks until
/// the last process closes it.
pub(crate) fn usage(path: &Path, first: Option<u32>) -> io::Result<DiskUsage> {
    let metadata = fs::symlink_metadata(path)?;
    let mut count = Count::new();
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn files_below_any_depth_are_counted_and_links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("layers");
        fs::create_dir(&root).unwrap();
        let inner = root.join("inner");
        let outer = root.join("outer");
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
        host_disk::remove_tree(&root).unwrap();
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
        // The file belongs to a descendant of the first process.
        let mut holder = std::process::Command::new("/bin/sh")
            .args(["-c", "python3 -c \"$0\"; exit 0", script])
            .current_dir(temp.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let none = usage(temp.path(), None).unwrap();
        let all = usage(temp.path(), Some(holder.id())).unwrap();
        holder.stdin.take().unwrap().write_all(b"\n").unwrap();
        holder.wait().unwrap();
        assert_eq!(line, "ready\n");
        assert_eq!((none.bytes, none.entries), (0, 0));
        // Reading `map_files` requires root.
        let expected = if rustix::process::geteuid().is_root() { (8, 2) } else { (3, 1) };
        assert_eq!((all.bytes >> 20, all.entries), expected, "{all:?}");
    }
}
