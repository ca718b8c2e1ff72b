//! On-disk state of a box: enough for a later server to find and remove it.
//!
//! ```text
//! <base>/boxes/<sandbox id>/box.json     written before the box is made
//!                           pid          written before the box runs
//!                           agent.sock   the way to the agent
//!                           events       counts kills by the memory limit
//!                           life         a FIFO that the agent holds open
//!                           agent        its program, where the box could write to a shared one
//!                           root/        its files, owned by the box
//!                           tmp/         what PRoot itself puts somewhere
//! ```
//!
//! An ordinary user's boxes run as that user, so a process that escaped PRoot may have put
//! anything here. Nothing is opened through a link.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use domain::SandboxId;
use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fstat, openat};
use serde::{Deserialize, Serialize};

/// Version of the format of [`Record`].
const FORMAT: u32 = 1;
/// Most bytes read of `box.json` and `pid`, which are far smaller.
const FILE_BYTES_MAX: u64 = 64 * 1024;
const SOCKET: &str = "agent.sock";

#[derive(Debug, Clone)]
pub(crate) struct Folders {
    pub(crate) base: PathBuf,
    pub(crate) boxes: PathBuf,
    pub(crate) trash: PathBuf,
}

impl Folders {
    /// Makes the folders; `mode` is that of every folder on the way to a box.
    pub(crate) fn make(base: &Path, mode: u32) -> io::Result<Folders> {
        DirBuilder::new().recursive(true).mode(mode).create(base)?;
        // Without links, since PRoot replaces them by their targets.
        let base = base.canonicalize()?;
        let [boxes, trash] = ["boxes", "trash"].map(|name| base.join(name));
        let folders = Folders { base, boxes, trash };
        for (dir, mode) in [(&folders.base, mode), (&folders.boxes, mode), (&folders.trash, 0o700)] {
            DirBuilder::new().recursive(true).mode(mode).create(dir)?;
            set_mode(dir, mode)?;
        }
        Ok(folders)
    }

    pub(crate) fn of(&self, id: &SandboxId) -> Folder {
        Folder(self.boxes.join(id.as_str()))
    }

    /// Returns every folder that is named as a box is.
    pub(crate) fn all(&self) -> io::Result<Vec<(SandboxId, Folder)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.boxes)? {
            let entry = entry?;
            if let Some(id) = entry.file_name().to_str().and_then(|name| SandboxId::parse(name).ok()) {
                found.push((id, Folder(entry.path())));
            }
        }
        Ok(found)
    }
}

/// Sets the mode independent of the server's umask.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}

#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn exists(&self) -> bool {
        self.0.symlink_metadata().is_ok()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }

    /// Makes the folder and what the box needs beside its files. A box with an id of its own can
    /// write only what is given to that id.
    pub(crate) fn make(&self, record: &Record) -> io::Result<()> {
        let id = record.id;
        DirBuilder::new().mode(0o700).create(&self.0)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.0.join("box.json"))?;
        file.write_all(&serde_json::to_vec(record)?)?;
        if id.is_some() {
            set_mode(&self.0, 0o711)?;
        }
        for dir in [self.root(), self.tmp()] {
            DirBuilder::new().mode(0o700).create(&dir)?;
            own(&dir, id)?;
        }
        let life = self.0.join("life");
        rustix::fs::mknodat(CWD, &life, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        own(&life, id)
    }

    /// Reads the record; `None` if there is no complete one, so that the box was never made.
    pub(crate) fn read(&self) -> Option<Record> {
        let record: Record = serde_json::from_slice(&self.content("box.json").ok()?).ok()?;
        (record.format == FORMAT).then_some(record)
    }

    /// Returns pid and start time of the tracer mode, which is the first process, and of `PRoot`,
    /// once they are recorded.
    pub(crate) fn pids(&self) -> Vec<(u32, u64)> {
        let text = self.content("pid").ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        // A line without its end is incomplete.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '));
        lines.filter_map(|(pid, started)| Some((pid.parse().ok()?, started.parse().ok()?))).collect()
    }

    /// Returns pid and start time of the first process.
    pub(crate) fn pid(&self) -> Option<(u32, u64)> {
        self.pids().first().copied()
    }

    fn content(&self, name: &str) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(self.open()?, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        File::from(file).take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(CWD, &self.0, flags, Mode::empty())?)
    }

    /// Binds the socket of the agent, which must not exist yet.
    pub(crate) fn listen(&self) -> io::Result<std::os::unix::net::UnixListener> {
        let dir = self.open()?;
        // A socket's name holds 107 bytes; a data folder's path may be longer.
        std::os::unix::net::UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))
    }

    /// Connects to the agent's socket. Anything else in its place is refused.
    pub(crate) async fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(self.open()?, SOCKET, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::ErrorKind::NotFound.into());
        }
        tokio::net::UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
    }
}

/// Changes the owner of `path` to the user of a box.
pub(crate) fn own(path: &Path, id: Option<u32>) -> io::Result<()> {
    let (uid, gid) = (id.map(Uid::from_raw), id.map(Gid::from_raw));
    Ok(rustix::fs::chownat(CWD, path, uid, gid, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Resources of a box besides its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// Uid and gid of all its processes and files, if it has an id of its own.
    pub(crate) id: Option<u32>,
}

impl Record {
    pub(crate) fn new(id: Option<u32>) -> Record {
        Record { format: FORMAT, id }
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;

    use super::*;

    fn made() -> (tempfile::TempDir, Folder) {
        let temp = tempfile::tempdir().unwrap();
        let folders = Folders::make(&temp.path().join("proot"), 0o700).unwrap();
        let folder = folders.of(&SandboxId::from_entropy([3; 10]));
        folder.make(&Record::new(None)).unwrap();
        (temp, folder)
    }

    #[test]
    fn what_was_written_is_read_and_what_is_torn_is_not() {
        let (_temp, folder) = made();
        assert_eq!(folder.read(), Some(Record::new(None)));
        assert_eq!(folder.pid(), None);
        fs::write(folder.path().join("pid"), "12 345\n13 34").unwrap();
        assert_eq!(folder.pids(), [(12, 345)]);
        fs::write(folder.path().join("box.json"), "{\"format\":1,").unwrap();
        assert_eq!(folder.read(), None);
    }

    #[tokio::test]
    async fn no_link_in_a_box_is_followed() {
        let (temp, folder) = made();
        let secret = temp.path().join("secret");
        fs::write(&secret, serde_json::to_vec(&Record::new(Some(7))).unwrap()).unwrap();
        fs::remove_file(folder.path().join("box.json")).unwrap();
        symlink(&secret, folder.path().join("box.json")).unwrap();
        symlink(&secret, folder.path().join("pid")).unwrap();
        assert_eq!((folder.read(), folder.pid()), (None, None));
        let elsewhere = temp.path().join("elsewhere.sock");
        let listener = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
        listener.set_nonblocking(true).unwrap();
        symlink(&elsewhere, folder.path().join(SOCKET)).unwrap();
        assert!(folder.connect().await.is_err());
        assert!(listener.accept().is_err(), "no connection was made");
        // The folder itself may be a link too.
        let (real, link) = (temp.path().join("real"), Folder(temp.path().join("link")));
        fs::rename(folder.path(), &real).unwrap();
        symlink(&real, link.path()).unwrap();
        assert!(link.open().is_err() && link.read().is_none() && link.connect().await.is_err());
    }
}
