//! Machines that are kept in files, from which processes make them again.
//!
//! ```text
//! <folder>/state, memory    processors, devices and memory, as Firecracker has written them
//!          image            drive with the files of the image that the machine has mounted
//!          changes          drive with what its box has changed; none if it had no box yet
//!          machine.json     written last: without it the rest is unfinished
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use domain::Timestamp;
use host_disk::remove_tree;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;

use super::sealed::{FileId, digest, open_written, seal};
use super::work_dir::{CHANGES, MEMORY, STATE};

/// Version of the format of [`SavedRecord`].
const FORMAT: u32 = 1;
const RECORD: &str = "machine.json";
/// Unit in which blocks are counted, on every file system.
const BLOCK_BYTES: u64 = 512;
/// Most folders of which is remembered that their files were checked.
const CHECKED_MAX: usize = 1024;

/// Properties of a saved machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRecord {
    format: u32,
    /// Version of the Firecracker that has written it.
    pub(super) version: String,
    /// Digest of the image; `None` for one without files.
    pub(super) image: Option<String>,
    /// Release of the kernel, if it is known.
    #[serde(default)]
    pub(super) kernel: Option<String>,
    /// Time at which it was written, in milliseconds since 1970.
    created_ms: i64,
    pub(super) memory_mb: u32,
    pub(super) vcpus: u32,
    /// Size of the drive with the changes, in mebibytes.
    pub(super) drive_mb: u32,
    /// Digests of its files, by name.
    #[serde(default)]
    files: BTreeMap<String, String>,
}

impl SavedRecord {
    pub(super) fn new(version: &str, image: Option<&str>, (memory_mb, vcpus, drive_mb): (u32, u32, u32)) -> Self {
        let now = clock_gettime(ClockId::Realtime);
        SavedRecord {
            format: FORMAT,
            version: version.to_owned(),
            image: image.map(str::to_owned),
            kernel: None,
            created_ms: now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000),
            memory_mb,
            vcpus,
            drive_mb,
            files: BTreeMap::new(),
        }
    }

    pub(super) fn created(&self) -> Timestamp {
        Timestamp::from_millisecond(self.created_ms).unwrap_or_default()
    }
}

/// Saved machine.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    dir: PathBuf,
    pub(super) record: SavedRecord,
}

impl Saved {
    /// Completes a folder with the files of a machine: they are not changed any more, and are there after a
    /// crash of the host.
    pub(super) fn finish(dir: &Path, mut record: SavedRecord) -> io::Result<Saved> {
        for name in [STATE, MEMORY, CHANGES] {
            let path = dir.join(name);
            if name == CHANGES && !path.exists() {
                continue;
            }
            let file = open_written(&path)?;
            record.files.insert(name.to_owned(), seal(&file)?);
            file.sync_data()?;
            file.set_permissions(Permissions::from_mode(0o444))?;
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(dir.join(RECORD))?;
        file.write_all(&serde_json::to_vec(&record)?)?;
        file.sync_data()?;
        File::open(dir)?.sync_data()?;
        Ok(Saved { dir: dir.to_owned(), record })
    }

    /// Reads what a folder holds; `None` if it is unfinished, or of another format.
    pub(super) fn read(dir: &Path) -> Option<Saved> {
        let record = serde_json::from_slice(&fs::read(dir.join(RECORD)).ok()?).ok();
        let record = record.filter(|record: &SavedRecord| record.format == FORMAT)?;
        Some(Saved { dir: dir.to_owned(), record })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of one of its files.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Gives some of its files names in another folder. Fails with [`ErrorKind::NotFound`] if it was
    /// removed.
    pub(super) fn link<const N: usize>(&self, names: [&str; N], to: &Path) -> io::Result<()> {
        names.into_iter().try_for_each(|name| fs::hard_link(self.file(name), to.join(name)))
    }

    /// Returns the bytes that it takes on disk, without those of the image.
    pub(super) fn size_bytes(&self) -> io::Result<u64> {
        self.record.files.keys().map(|name| Ok(self.file(name).symlink_metadata()?.blocks() * BLOCK_BYTES)).sum()
    }

    /// Removes it. Boxes that were made of it go on.
    pub(super) fn remove(&self) -> io::Result<()> {
        Saved::discard(&self.dir)
    }

    /// Removes a folder with the files of a machine, whole or not.
    pub(super) fn discard(dir: &Path) -> io::Result<()> {
        // First what makes it whole.
        match fs::remove_file(dir.join(RECORD)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => remove_tree(dir),
        }
    }

    fn ids(&self) -> io::Result<Vec<FileId>> {
        self.record.files.keys().map(|name| FileId::of(&self.file(name))).collect()
    }

    fn check(&self) -> io::Result<()> {
        for (name, expected) in &self.record.files {
            if digest(&self.file(name))? != *expected {
                let text = format!("the file {name} of the saved machine has changed since it was written");
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
        }
        Ok(())
    }
}

/// Record of the saved machines whose files were checked by their digests, and have not changed since.
#[derive(Debug, Default)]
pub(super) struct Checks {
    known: Mutex<HashMap<PathBuf, Vec<FileId>>>,
    /// Lock held while one is checked, so that it is checked once.
    checking: AsyncMutex<()>,
}

impl Checks {
    /// Checks the files of a saved machine before they are used. The digests are reckoned for the first
    /// use by a server that has not written them, and when a file looks different.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if a file is not what was written, [`ErrorKind::NotFound`] if one is
    /// missing.
    pub(super) async fn check(&self, saved: &Saved) -> io::Result<()> {
        if self.knows(saved)? {
            return Ok(());
        }
        let _checking = self.checking.lock().await;
        if self.knows(saved)? {
            return Ok(());
        }
        let ids = saved.ids()?;
        let checked = saved.clone();
        let checked = tokio::task::spawn_blocking(move || checked.check()).await;
        checked.unwrap_or_else(|error| Err(io::Error::other(error)))?;
        self.add(saved, ids);
        Ok(())
    }

    /// Takes the files of a saved machine as checked: this server has just read all of them for their digests.
    pub(super) fn remember(&self, saved: &Saved) -> io::Result<()> {
        self.add(saved, saved.ids()?);
        Ok(())
    }

    fn add(&self, saved: &Saved, ids: Vec<FileId>) {
        let mut known = self.known.lock();
        if known.len() >= CHECKED_MAX {
            // Those that are used again are checked again.
            known.clear();
        }
        known.insert(saved.dir.clone(), ids);
    }

    fn knows(&self, saved: &Saved) -> io::Result<bool> {
        let ids = saved.ids()?;
        Ok(self.known.lock().get(&saved.dir).is_some_and(|known| *known == ids))
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::FileExt as _;

    use super::super::work_dir::IMAGE;
    use super::*;

    fn written(dir: &Path) -> Saved {
        for (name, content) in [(STATE, "state"), (MEMORY, "memory"), (IMAGE, "image")] {
            fs::write(dir.join(name), content).unwrap();
        }
        Saved::finish(dir, SavedRecord::new("1.16.1", None, (128, 1, 64))).unwrap()
    }

    #[tokio::test]
    async fn a_file_that_changed_or_is_missing_or_cut_short_is_found_before_its_use() {
        let temp = tempfile::tempdir().unwrap();
        for (at, spoil) in [
            (|dir: &Path| {
                let file = File::options().write(true).open(dir.join(MEMORY)).unwrap();
                file.write_all_at(b"M", 0).unwrap();
            }) as fn(&Path),
            |dir| fs::write(dir.join(STATE), "stat").unwrap(),
            |dir| fs::remove_file(dir.join(MEMORY)).unwrap(),
        ]
        .into_iter()
        .enumerate()
        {
            let dir = temp.path().join(at.to_string());
            fs::create_dir(&dir).unwrap();
            let saved = written(&dir);
            let checks = Checks::default();
            if at % 2 == 0 {
                checks.check(&saved).await.unwrap();
            } else {
                checks.remember(&saved).unwrap();
            }
            for file in [STATE, MEMORY] {
                fs::set_permissions(dir.join(file), Permissions::from_mode(0o600)).unwrap();
            }
            checks.check(&saved).await.unwrap();
            spoil(&dir);
            assert!(checks.check(&saved).await.is_err(), "{at}, by a server that has checked it");
            assert!(Checks::default().check(&saved).await.is_err(), "{at}");
        }
    }

    #[test]
    fn one_that_is_unfinished_or_of_another_format_is_none() {
        let temp = tempfile::tempdir().unwrap();
        assert!(Saved::read(temp.path()).is_none());
        let saved = written(temp.path());
        assert_eq!(Saved::read(temp.path()).unwrap().record, saved.record);
        assert!(saved.size_bytes().unwrap() > 0);
        let text = fs::read_to_string(temp.path().join(RECORD)).unwrap();
        fs::write(temp.path().join(RECORD), text.replace(r#""format":1"#, r#""format":9"#)).unwrap();
        assert!(Saved::read(temp.path()).is_none());
        saved.remove().unwrap();
        saved.remove().unwrap();
        assert!(!temp.path().exists());
    }
}
