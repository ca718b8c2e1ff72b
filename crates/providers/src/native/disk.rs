//! The disk that a box takes, and images that bound it.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use tokio::process::Command;

/// The program that makes a file system in a file.
const MKFS: &str = "mkfs.ext4";
/// Making one takes some milliseconds, or some seconds on a slow disk.
const MKFS_WAIT: Duration = Duration::from_secs(30);
/// Blocks are counted in this unit, whatever the file system's own is.
const BLOCK_BYTES: u64 = 512;
/// After so many entries the count is given as it is: enough to see that the box
/// fills the disk, and an end for one that makes entries while we count.
const ENTRIES_MAX: usize = 2_000_000;
/// Paths longer than this are shortened by opening a directory on the way; half
/// of what the kernel takes, since one name can be 255 bytes.
const PATH_BYTES_MAX: usize = 2048;

/// Makes a sparse file with an ext4 of `size_mb` in it. Without a journal, since
/// no box outlives a crash of the host.
pub(super) async fn make_image(path: &Path, size_mb: u32) -> io::Result<()> {
    fs::File::create_new(path)?.set_len(u64::from(size_mb) * 1024 * 1024)?;
    let mut command = Command::new(MKFS);
    command.args(["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"]).arg(path);
    command
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = tokio::time::timeout(MKFS_WAIT, command.kill_on_drop(true).output()).await;
    let output = output.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{MKFS}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Bytes on disk of a file or of a tree that a box is changing meanwhile.
pub(crate) fn usage(path: &Path) -> io::Result<u64> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Ok(metadata.blocks() * BLOCK_BYTES);
    }
    let root =
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    Ok(tree_usage(Arc::new(root)))
}

fn tree_usage(root: Arc<OwnedFd>) -> u64 {
    let mut blocks = 0u64;
    let mut entries = 0usize;
    let mut waiting = VecDeque::from([(root, PathBuf::from("."))]);
    while let Some((base, path)) = waiting.pop_back() {
        // What the box has removed meanwhile takes nothing.
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
            entries += 1;
            if entries > ENTRIES_MAX {
                return blocks * BLOCK_BYTES;
            }
            let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            blocks = blocks.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0));
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                use std::os::unix::ffi::OsStrExt;
                waiting.push_back((Arc::clone(&base), path.join(std::ffi::OsStr::from_bytes(name.to_bytes()))));
            }
        }
    }
    blocks * BLOCK_BYTES
}

/// Neither a link nor `..` leads out of the tree.
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
        let bytes = usage(&root).unwrap();
        assert!((1 << 20..4 << 20).contains(&bytes), "{bytes}");
        crate::removal::remove_tree(&root).unwrap();
    }
}
