//! Folder that holds everything that must survive a restart.

use std::fs::File;
use std::path::Path;

use super::failure::Failure;

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
