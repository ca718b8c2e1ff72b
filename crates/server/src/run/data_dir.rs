//! Folder that holds everything that must survive a restart.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use secrecy::zeroize::Zeroizing;

use super::failure::Failure;
use crate::auth::preview::{KEY_BYTES, PreviewKey};
use crate::secrets::{KEY_BYTES as SEALING_KEY_BYTES, SealingKey};

/// Creates the data directory, for the server's user alone, and locks it.
pub(super) fn lock(data_dir: &Path) -> Result<File, Failure> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| Failure::DataDir { path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(failed(data_dir))?;
    let path = data_dir.join("lock");
    let lock =
        File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed(&path))?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::Locked(data_dir.display().to_string())),
        Err(errno) => Err(failed(&path)(errno.into())),
    }
}

/// Returns the key that secrets are sealed with: the one in `file`, else one in the data directory,
/// which is made at the first start.
pub(super) fn sealing_key(data_dir: &Path, file: Option<&Path>) -> Result<SealingKey, Failure> {
    let made = data_dir.join("secrets.key");
    let path = file.unwrap_or(&made);
    let failed = |source| Failure::KeyFile { path: path.display().to_string(), source };
    if file.is_none() {
        make_sealing_key(path).map_err(failed)?;
    }
    warn_if_open(path).map_err(failed)?;
    let bytes = Zeroizing::new(std::fs::read(path).map_err(failed)?);
    let key = bytes.as_slice().try_into().map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
    Ok(SealingKey::new(key))
}

/// Logs a warning if others than the owner may read or change a key.
fn warn_if_open(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(), mode = %format_args!("{mode:04o}"),
            "others may read or change this key; make it the server's alone: chmod 600"
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

/// Returns the key of permits for previews, which is made at the first start. A file of another
/// length is replaced: it was cut off by a full disk, or by hand to end all permits.
pub(super) fn preview_key(data_dir: &Path) -> Result<PreviewKey, Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = data_dir.join("preview.key");
    let key = || -> io::Result<PreviewKey> {
        let mut file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
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
    };
    key()
        .and_then(|key| warn_if_open(&path).map(|()| key))
        .map_err(|source| Failure::DataDir { path: path.display().to_string(), source })
}
