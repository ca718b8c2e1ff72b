//! Files that several images have: one inode for all of them.
//!
//! A regular file is identified by a hash of its content and its metadata: mode, owner, time,
//! attributes. Under that name a hard link of it lies in `files/`, and the next tree with the
//! same file gets another link. Trees are never written to, so sharing makes no visible
//! difference.
//!
//! Two equal files of *one* tree stay two inodes: programs check whether two names are the same
//! file, and rename one onto the other. So the name also has a number for each of the equal
//! files.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::root::disk;
use crate::digest::hex;
use crate::error::Result;

/// Shared files, as one unpacking sees them.
#[derive(Debug)]
pub(super) struct Shared {
    files: OwnedFd,
    /// Number of uses of each file in this tree, by the start of its hash.
    used: HashMap<u64, u32>,
    /// Temporary name for replacing a file.
    spare: std::path::PathBuf,
}

/// Metadata of a file, without its name.
#[derive(Debug)]
pub(super) struct Traits<'a> {
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: (i64, u32),
    /// Extended attributes, sorted by name.
    pub(super) xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// Name of a file in `files/`.
#[derive(Debug)]
pub(super) struct Key(String);

impl Shared {
    pub(super) fn open(files: &Path, spare: std::path::PathBuf) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let files = openat(CWD, files, flags, Mode::empty()).map_err(disk)?;
        Ok(Shared { files, used: HashMap::new(), spare })
    }

    /// Returns the name of the next file of this tree with this hash of its content and these
    /// traits.
    pub(super) fn key(&mut self, content: &[u8], traits: &Traits<'_>) -> Key {
        let mut hash = Sha256::new();
        hash.update(content);
        hash.update(traits.size.to_le_bytes());
        hash.update(traits.mode.to_le_bytes());
        hash.update(traits.uid.to_le_bytes());
        hash.update(traits.gid.to_le_bytes());
        hash.update(traits.mtime.0.to_le_bytes());
        hash.update(traits.mtime.1.to_le_bytes());
        for (name, value) in traits.xattrs {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update((value.len() as u64).to_le_bytes());
            hash.update(value);
        }
        let hash: [u8; 32] = hash.finalize().into();
        let short = u64::from_le_bytes(hash[..8].try_into().unwrap_or_default());
        let which = self.used.entry(short).or_default();
        let hex = hex(&hash);
        let key = Key(format!("{}/{}.{which}", &hex[..2], &hex[2..]));
        *which += 1;
        key
    }

    /// Links the file with this key to `name` in the directory; `None` if there is no such file
    /// or it cannot have another link. Nothing may exist at `name`.
    pub(super) fn link(&self, key: &Key, traits: &Traits<'_>, dir: &OwnedFd, name: &[u8]) -> Result<Option<()>> {
        if !self.whole(key, traits)? {
            return Ok(None);
        }
        match linkat(&self.files, &key.0, dir, name, AtFlags::empty()) {
            Ok(()) => Ok(Some(())),
            Err(Errno::MLINK | Errno::NOENT) => Ok(None),
            // The caller has cleared the name.
            Err(error) => Err(disk(error)),
        }
    }

    /// Shares a file that was just made at `name`: later images find it by its key. If the key
    /// has a file already, that file replaces it.
    pub(super) fn offer(&self, key: &Key, traits: &Traits<'_>, dir: &OwnedFd, name: &[u8]) -> Result<()> {
        for _ in 0..2 {
            match linkat(dir, name, &self.files, &key.0, AtFlags::empty()) {
                Ok(()) | Err(Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => return Ok(()),
                Err(Errno::NOENT) => match mkdirat(&self.files, &key.0[..2], Mode::from(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(disk(error)),
                },
                Err(Errno::EXIST) => return self.exchange(key, traits, dir, name),
                Err(error) => return Err(disk(error)),
            }
        }
        Ok(())
    }

    fn exchange(&self, key: &Key, traits: &Traits<'_>, dir: &OwnedFd, name: &[u8]) -> Result<()> {
        if !self.whole(key, traits)? {
            return Ok(());
        }
        match linkat(&self.files, &key.0, CWD, &self.spare, AtFlags::empty()) {
            Ok(()) => renameat(CWD, &self.spare, dir, name).map_err(disk),
            Err(Errno::MLINK | Errno::NOENT) => Ok(()),
            Err(error) => Err(disk(error)),
        }
    }

    /// Checks whether the shared file exists and is intact, as far as its metadata show. A
    /// damaged one is not offered again.
    fn whole(&self, key: &Key, traits: &Traits<'_>) -> Result<bool> {
        let stat = match statat(&self.files, &key.0, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(disk(error)),
        };
        let whole = stat.st_size.cast_unsigned() == traits.size
            && (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid) == (traits.mode, traits.uid, traits.gid);
        if !whole {
            tracing::warn!(file = key.0, "a file shared by images is damaged; writing it again");
            let _ = unlinkat(&self.files, &key.0, AtFlags::empty());
        }
        Ok(whole)
    }
}

/// Removes the files in `files` that no tree has, or all of them with `every`; returns the bytes
/// freed.
pub(super) fn collect(files: &Path, every: bool) -> io::Result<u64> {
    let mut freed = 0;
    for folder in std::fs::read_dir(files)? {
        let folder = folder?.path();
        for file in std::fs::read_dir(&folder)? {
            let file = file?;
            let metadata = file.metadata()?;
            if every || metadata.nlink() == 1 {
                std::fs::remove_file(file.path())?;
                if metadata.nlink() == 1 {
                    freed += metadata.blocks() * 512;
                }
            }
        }
    }
    Ok(freed)
}
