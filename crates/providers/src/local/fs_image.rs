//! Files with an ext4 file system.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::disk::says_full;

/// Program that makes the file system.
const MKE2FS: &str = "mke2fs";
/// Limit for an empty one, which takes some milliseconds, or some seconds on a slow disk.
const EMPTY_WAIT: Duration = Duration::from_secs(30);
/// Limit for one with files: those of a large image on a slow disk.
const FILLED_WAIT: Duration = Duration::from_secs(900);
/// Inodes beyond those of the files: what is reserved, and what `mke2fs` itself makes.
const MORE_INODES: u64 = 64;

/// File that is removed when this is dropped: the next attempt makes it anew.
struct Unfinished<'a>(Option<&'a Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // One that is gone is as good.
        let _ = self.0.map(fs::remove_file);
    }
}

/// Makes a sparse file with an ext4 of `size_mb` MiB in it, which must not exist yet; on error there is none. It
/// has no journal, since no box outlives a crash of the host. With `files`, a folder and the number of entries
/// below it, it has a copy of them: of the root's user where the server is not root.
pub(crate) async fn make_ext4(path: &Path, size_mb: u32, files: Option<(&Path, u64)>) -> io::Result<()> {
    let file = fs::File::create_new(path)?;
    let mut unfinished = Unfinished(Some(path));
    file.set_len(u64::from(size_mb) * 1024 * 1024)?;
    let is_root = rustix::process::geteuid().is_root();
    let mut command = match files {
        // It would record the server's user as the owner of all files.
        Some(_) if !is_root => {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", MKE2FS]);
            command
        }
        Some(_) | None => Command::new(MKE2FS),
    };
    // Room for a larger size takes megabytes, and none ever gets one.
    command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal,^resize_inode"]);
    command.args(["-E", "lazy_itable_init=1,nodiscard"]);
    if let Some((root, entries)) = files {
        command.arg("-N").arg((entries + MORE_INODES).to_string()).arg("-d").arg(root);
    }
    command.arg(path);
    command
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        // The error text is parsed below.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let wait = if files.is_some() { FILLED_WAIT } else { EMPTY_WAIT };
    let output = tokio::time::timeout(wait, command.kill_on_drop(true).output()).await;
    let output = output.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("{MKE2FS} (e2fsprogs): {error}")))?;
    if output.status.success() {
        unfinished.0 = None;
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if says_full(&said) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Err(io::Error::other(format!("{MKE2FS}: {}", said.trim())))
}

#[cfg(test)]
mod test {
    use super::*;

    #[tokio::test]
    async fn what_could_not_be_made_is_in_the_way_of_no_later_attempt() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("drive");
        let missing = temp.path().join("missing");
        for _ in 0..2 {
            let error = make_ext4(&path, 8, Some((&missing, 1))).await.unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
            assert!(!path.exists());
        }
        fs::write(&path, "of another").unwrap();
        assert_eq!(make_ext4(&path, 8, None).await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"of another");
    }
}
