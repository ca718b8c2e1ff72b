//! Folder that holds everything that must survive a restart.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use secrecy::zeroize::Zeroizing;

use super::failure::Failure;
use crate::auth::preview::{KEY_BYTES, PreviewKey};
use crate::secrets::{KEY_BYTES as SEALING_KEY_BYTES, SealingKey};

/// Longest wait for the lock of a server that has ended: what it was starting has the lock too until it is
/// another program, which takes long on a busy machine.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Pause between two attempts to take the lock.
const LOCK_LOOK: Duration = Duration::from_millis(10);
/// Most bytes of the lock's file that are read: two numbers.
const OWNER_BYTES_MAX: usize = 64;
/// Flag of a process that ends, as the kernel shows it.
const EXITING: u64 = 0x4;
/// Bit of the signal that ends every process among those that wait to be delivered.
const KILL_BIT: u64 = 1 << 8;

/// Creates the data directory, for the server's user alone, and locks it. Waits for the lock of a server that has
/// ended.
pub(super) fn lock(data_dir: &Path) -> Result<File, Failure> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .map_err(|error| data_dir_failure(data_dir, error))?;
    let path = data_dir.join("lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| data_dir_failure(&path, error))?;
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let owner = Owner::read(&lock);
                if begun.elapsed() >= LOCK_WAIT || owner.is_some_and(Owner::runs) {
                    let by = owner.map(|owner| format!(" (process {})", owner.pid)).unwrap_or_default();
                    return Err(Failure::Locked { dir: data_dir.display().to_string(), by });
                }
                std::thread::sleep(LOCK_LOOK);
            }
            Err(errno) => return Err(data_dir_failure(&path, errno.into())),
        }
    }
    // On a full disk the server starts all the same: who comes next waits for it in vain.
    if let Err(error) = Owner::write(&lock) {
        tracing::warn!(%error, path = %path.display(), "cannot write this server's name into the lock file");
    }
    Ok(lock)
}

fn data_dir_failure(path: &Path, source: io::Error) -> Failure {
    Failure::DataDir { path: path.display().to_string(), source }
}

fn key_file_failure(path: &Path, source: io::Error) -> Failure {
    Failure::KeyFile { path: path.display().to_string(), source }
}

/// Server that holds the lock, as it has written itself into the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    pid: u32,
    /// Start, in clock ticks since boot.
    started: u64,
}

impl Owner {
    fn read(file: &File) -> Option<Owner> {
        let mut bytes = [0; OWNER_BYTES_MAX];
        let count = file.read_at(&mut bytes, 0).ok()?;
        let (pid, started) = std::str::from_utf8(&bytes[..count]).ok()?.trim_end().split_once(' ')?;
        Some(Owner { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    fn write(file: &File) -> io::Result<()> {
        let pid = std::process::id();
        let started = look(pid).ok_or(io::ErrorKind::NotFound)?.started;
        let text = format!("{pid} {started}\n");
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    /// Returns whether it runs, and is not about to end.
    fn runs(self) -> bool {
        look(self.pid).is_some_and(|look| look.started == self.started && !look.is_ending)
    }
}

/// A process as the kernel shows it.
struct Look {
    started: u64,
    is_ending: bool,
}

fn look(pid: u32) -> Option<Look> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let is_ending = matches!(*fields.first()?, "Z" | "X")
        || number(&fields, 6)? & EXITING != 0
        || number(&fields, 28)? & KILL_BIT != 0;
    Some(Look { started: number(&fields, 19)?, is_ending })
}

fn number(fields: &[&str], index: usize) -> Option<u64> {
    fields.get(index)?.parse().ok()
}

/// Returns the key that secrets are sealed with: the one in `file`, else one in the data directory,
/// which is made at the first start.
pub(super) fn sealing_key(data_dir: &Path, file: Option<&Path>) -> Result<SealingKey, Failure> {
    let made = data_dir.join("secrets.key");
    let path = file.unwrap_or(&made);
    if file.is_none() {
        make_sealing_key(path).map_err(|error| key_file_failure(path, error))?;
    }
    warn_if_open(path).map_err(|error| key_file_failure(path, error))?;
    let bytes = Zeroizing::new(std::fs::read(path).map_err(|error| key_file_failure(path, error))?);
    match bytes.as_slice().try_into() {
        Ok(key) => Ok(SealingKey::new(key)),
        Err(_) => Err(key_file_failure(path, io::ErrorKind::InvalidData.into())),
    }
}

/// Logs a warning if others than the owner may read or change a key.
fn warn_if_open(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(), mode = %format_args!("{mode:04o}"),
            "other users may read or change this key; restrict it to the server's user: chmod 600"
        );
    }
    Ok(())
}

/// Writes a new key, unless the file has content.
fn make_sealing_key(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.len() == 0 {
        file.write_all(&rand::random::<[u8; SEALING_KEY_BYTES]>())?;
        file.sync_all()?;
    }
    Ok(())
}

/// Returns the key of permits for previews, which is made at the first start.
pub(super) fn preview_key(data_dir: &Path) -> Result<PreviewKey, Failure> {
    let path = data_dir.join("preview.key");
    let key = read_or_make_preview_key(&path).map_err(|error| data_dir_failure(&path, error))?;
    warn_if_open(&path).map_err(|error| data_dir_failure(&path, error))?;
    Ok(key)
}

/// Reads the key in a file. A file of another length is replaced: it was cut off by a full disk, or
/// by hand to end all permits.
fn read_or_make_preview_key(path: &Path) -> io::Result<PreviewKey> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let mut bytes = Vec::with_capacity(KEY_BYTES);
    (&mut file).take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let bytes = match bytes.try_into() {
        Ok(bytes) => bytes,
        Err(_) => {
            let made: [u8; KEY_BYTES] = rand::random();
            file.set_len(0)?;
            io::Seek::rewind(&mut file)?;
            file.write_all(&made)?;
            file.sync_all()?;
            made
        }
    };
    Ok(PreviewKey::new(bytes))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_lock_of_a_server_that_has_ended_is_waited_for_and_that_of_one_that_runs_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        let begun = Instant::now();
        let refused = lock(dir.path());
        let own = format!("(process {})", std::process::id());
        assert!(matches!(&refused, Err(Failure::Locked { by, .. }) if by.contains(&own)), "{refused:?}");
        assert!(begun.elapsed() < LOCK_WAIT / 2);

        // As one that was killed while it started a program.
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pid = ended.id();
        ended.wait().unwrap();
        let text = format!("{pid} 1\n");
        held.write_all_at(text.as_bytes(), 0).unwrap();
        held.set_len(text.len() as u64).unwrap();
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(dir.path()));
            while !waiting.is_finished() && begun.elapsed() < Duration::from_millis(200) {
                std::thread::yield_now();
            }
            assert!(!waiting.is_finished(), "it does not wait");
            drop(held);
            waiting.join().unwrap()
        });
        assert_eq!(Owner::read(&waiting.unwrap()).map(|owner| owner.pid), Some(std::process::id()));
    }
}
