//! Archives that clients upload for builds. They are kept for an hour after their last use, because a client asks
//! whether it has to upload again.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::{OwnerId, base32};
use futures_util::StreamExt;
use host_disk::Room;
use parking_lot::Mutex;
use providers::ByteStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::control::error::{Error, Result};
use crate::control::full::Full;

/// Time for which an archive is kept after its last use.
const KEPT: Duration = Duration::from_secs(3600);
/// Most archives of one owner, of which the one that was not used for the longest goes.
const OF_OWNER_MAX: usize = 100;
/// Most archives of all owners.
const ALL_MAX: usize = 1000;
/// Length of a piece that is read or written, in bytes.
const PIECE: usize = 64 * 1024;
/// Bytes that are written between two looks at the free space.
const LOOK_EVERY: u64 = 16 << 20;

/// Archive of files for a build: a tar. The file goes with the last that holds it.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
}

impl Drop for Archive {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Archive {
    /// Reads the archive.
    pub(super) fn bytes(self: &Arc<Self>) -> ByteStream {
        let failed = |source: io::Error| providers::Error::failed("read an archive of a build", source);
        let begun = (Arc::clone(self), None);
        futures_util::stream::try_unfold(begun, move |(archive, file)| async move {
            let mut file = match file {
                Some(file) => file,
                None => tokio::fs::File::open(&archive.path).await.map_err(failed)?,
            };
            let mut piece = vec![0; PIECE];
            let read = file.read(&mut piece).await.map_err(failed)?;
            piece.truncate(read);
            Ok((read > 0).then(|| (Bytes::from(piece), (archive, Some(file)))))
        })
        .boxed()
    }
}

type Key = (Option<OwnerId>, String);

/// Archives that are kept, in a folder of their own.
#[derive(Debug)]
pub struct Archives {
    folder: PathBuf,
    reserve_bytes: u64,
    /// True once the folder is there, without what a server before left.
    is_made: tokio::sync::Mutex<bool>,
    all: Mutex<HashMap<Key, Kept>>,
}

#[derive(Debug)]
struct Kept {
    archive: Arc<Archive>,
    used: Instant,
}

impl Archives {
    /// Returns archives in `folder`, which is made when the first comes, on a disk that keeps `reserve_bytes` free.
    pub fn new(folder: PathBuf, reserve_bytes: u64) -> Self {
        Self { folder, reserve_bytes, is_made: tokio::sync::Mutex::default(), all: Mutex::default() }
    }

    /// Returns an archive of an owner, which counts as a use of it.
    pub fn get(&self, owner: Option<&OwnerId>, digest: &str) -> Option<Arc<Archive>> {
        let mut all = self.all.lock();
        let kept = all.get_mut(&(owner.cloned(), digest.to_owned()))?;
        kept.used = Instant::now();
        Some(Arc::clone(&kept.archive))
    }

    /// Stores an archive of an owner, in the place of one with the same digest. The digest is the client's, of what the
    /// archive was made from; it only means something to the same owner.
    ///
    /// # Errors
    /// [`Error::Full`] without space, and the error of `content`.
    pub async fn put(&self, owner: Option<&OwnerId>, digest: &str, content: ByteStream) -> Result<()> {
        self.make_folder().await?;
        let path = self.folder.join(base32(&rand::random::<[u8; 10]>()));
        // From here on a failure removes the file.
        let archive = Arc::new(Archive { path });
        self.write(&archive.path, content).await?;
        let mut all = self.all.lock();
        all.insert((owner.cloned(), digest.to_owned()), Kept { archive, used: Instant::now() });
        let of_owner = all.keys().filter(|(of, _)| of.as_ref() == owner).count();
        let is_in_excess = all.len() > ALL_MAX;
        if of_owner > OF_OWNER_MAX || is_in_excess {
            let may_go = all.iter().filter(|((of, _), _)| is_in_excess || of.as_ref() == owner);
            let oldest = may_go.min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone());
            oldest.and_then(|key| all.remove(&key));
        }
        Ok(())
    }

    /// Removes what a server before left.
    pub(super) async fn clear_leftovers(&self) -> Result<()> {
        if self.folder.exists() { self.make_folder().await } else { Ok(()) }
    }

    async fn make_folder(&self) -> Result<()> {
        let mut is_made = self.is_made.lock().await;
        if !*is_made {
            let folder = self.folder.clone();
            let make = move || {
                if folder.exists() {
                    host_disk::remove_tree(&folder)?;
                }
                std::fs::create_dir_all(&folder)
            };
            let made = tokio::task::spawn_blocking(make).await.map_err(io::Error::other).flatten();
            made.map_err(|error| self.failed(&error))?;
            *is_made = true;
        }
        Ok(())
    }

    async fn write(&self, path: &Path, mut content: ByteStream) -> Result<()> {
        let mut file = tokio::fs::File::create_new(path).await.map_err(|error| self.failed(&error))?;
        let mut unlooked = LOOK_EVERY;
        while let Some(piece) = content.next().await {
            let piece = piece.map_err(|error| Error::Invalid(error.to_string()))?;
            unlooked += piece.len() as u64;
            if unlooked >= LOOK_EVERY {
                unlooked = 0;
                self.check_room()?;
            }
            file.write_all(&piece).await.map_err(|error| self.failed(&error))?;
        }
        file.flush().await.map_err(|error| self.failed(&error))
    }

    fn check_room(&self) -> Result<()> {
        // If the disk cannot be read, the write tells.
        let is_free = Room::of(&self.folder).map_or(true, |room| room.bytes > self.reserve_bytes + LOOK_EVERY);
        if is_free { Ok(()) } else { Err(Error::Full(Full::Archives)) }
    }

    fn failed(&self, error: &io::Error) -> Error {
        tracing::warn!(folder = %self.folder.display(), %error, "cannot write an archive for a build");
        Error::Full(Full::Archives)
    }

    /// Forgets archives that were not used for an hour.
    pub(super) fn forget_old(&self) {
        self.all.lock().retain(|_, kept| kept.used.elapsed() < KEPT);
    }
}
