//! Image files that bound the disk of a box.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::local::folder::BoxFolder;

/// Program that makes the file system.
const MKFS: &str = "mkfs.ext4";
/// Limit for one run of [`MKFS`], which takes some milliseconds, or some seconds on a slow disk.
const MKFS_WAIT: Duration = Duration::from_secs(30);

/// Returns the image file of a box, which is there if its disk is bounded.
pub(super) fn image_file(folder: &BoxFolder) -> PathBuf {
    folder.path().join("disk.img")
}

/// Makes a sparse file with an ext4 of `size_mb` MiB in it. It has no journal, since no box
/// outlives a crash of the host.
pub(super) async fn make_image(path: &Path, size_mb: u32) -> io::Result<()> {
    fs::File::create_new(path)?.set_len(u64::from(size_mb) * 1024 * 1024)?;
    let mut command = Command::new(MKFS);
    command.args(["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"]).arg(path);
    command
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        // The error text is parsed below.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = tokio::time::timeout(MKFS_WAIT, command.kill_on_drop(true).output()).await;
    let output = output.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let is_full = ["No space left on device", "Disk quota exceeded"].iter().any(|full| said.contains(full));
    if is_full {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Err(io::Error::other(format!("{MKFS}: {}", said.trim())))
}
