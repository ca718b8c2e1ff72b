//! On-disk state of boxes: enough for a later server to find and remove them.
//!
//! ```text
//! <base>/boxes/<sandbox id>/box.json     written before the box is made
//!                           pid          written before the box runs
//!                           agent.sock   the way to the agent
//!                           slots/       of a box that holds slots: a folder like this one for each
//! <base>/trash/                          removed boxes that are still to be deleted
//! ```
//!
//! Backends keep the files of their boxes beside these.
//!
//! Some boxes run as the server's own user, so a process that escaped from one may have put
//! anything here. Nothing is opened through a link.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use domain::SandboxId;
use host_disk::replace_file;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};

use super::record::Record;
use crate::agent::connect_unix;

/// Most bytes read of `box.json` and `pid`, which are far smaller.
const FILE_BYTES_MAX: u64 = 64 * 1024;
const RECORD: &str = "box.json";
const PID: &str = "pid";
const SOCKET: &str = "agent.sock";

/// Folders of a provider.
#[derive(Debug, Clone)]
pub struct Folders {
    pub(crate) base: PathBuf,
    /// Parent of the folders of boxes.
    pub(crate) boxes: PathBuf,
    /// Removed boxes that are still to be deleted.
    pub(crate) trash: PathBuf,
}

impl Folders {
    /// Makes the folders in `base`, which must be absolute since the launcher gets these paths.
    /// `mode` is that of every folder on the way to a box.
    pub(crate) fn make(base: PathBuf, mode: u32) -> io::Result<Folders> {
        let [boxes, trash] = ["boxes", "trash"].map(|name| base.join(name));
        let folders = Folders { base, boxes, trash };
        for (dir, mode) in [(&folders.base, mode), (&folders.boxes, mode), (&folders.trash, 0o700)] {
            DirBuilder::new().recursive(true).mode(mode).create(dir)?;
        }
        Ok(folders)
    }

    pub(crate) fn of(&self, id: &SandboxId) -> BoxFolder {
        BoxFolder(self.boxes.join(id.as_str()))
    }

    /// Returns every folder that is named as a box is.
    pub(crate) fn all(&self) -> io::Result<Vec<(SandboxId, BoxFolder)>> {
        folders_in(&self.boxes)
    }
}

/// Folder of a box or a slot.
#[derive(Debug, Clone)]
pub struct BoxFolder(PathBuf);

impl BoxFolder {
    pub(crate) fn at(path: PathBuf) -> BoxFolder {
        BoxFolder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the folder's own name, the id of its box.
    pub(crate) fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn exists(&self) -> bool {
        self.0.symlink_metadata().is_ok()
    }

    /// Returns the folder of a slot.
    pub(crate) fn slot(&self, id: &SandboxId) -> BoxFolder {
        BoxFolder(self.0.join("slots").join(id.as_str()))
    }

    /// Makes the parent folder of slots.
    pub(crate) fn make_slots(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.0.join("slots"))
    }

    /// Returns the slots on disk; empty if the box never had one.
    pub(crate) fn slots(&self) -> io::Result<Vec<(SandboxId, BoxFolder)>> {
        match folders_in(&self.0.join("slots")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Makes the folder, accessible to the server's user only.
    pub(crate) fn make(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.0)
    }

    /// Makes its files, empty: an empty record means that there is no box.
    pub(crate) fn touch(&self) -> io::Result<()> {
        [RECORD, PID].into_iter().try_for_each(|name| fs::write(self.0.join(name), []))
    }

    /// Writes the record, once, readable by the server's user only.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        // The file may be there and is empty. To truncate it would make ext4 choose blocks as it is
        // closed.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | NO_LINK;
        let file = openat(self.open()?, RECORD, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(&serde_json::to_vec(record)?)
    }

    /// Writes another record over the one that is there.
    pub(crate) fn rewrite(&self, record: &Record) -> io::Result<()> {
        replace_file(&self.0.join(RECORD), &serde_json::to_vec(record)?)
    }

    /// Has the record and the file `other` be there after a power failure.
    pub(crate) fn sync(&self, other: &str) -> io::Result<()> {
        let files = [self.0.join(RECORD), self.0.join(other), self.0.clone()];
        files.iter().map(PathBuf::as_path).chain(self.0.parent()).try_for_each(|path| File::open(path)?.sync_data())
    }

    /// Reads the record; `None` if there is no complete one, so that the box was never made.
    pub(crate) fn read(&self) -> Option<Record> {
        Record::parse(&self.content(RECORD).ok()?)
    }

    /// Returns pid and start time of the first process, and of those that were recorded after it.
    pub(crate) fn pids(&self) -> Vec<(u32, u64)> {
        let text = self.content(PID).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        // A line without its end is incomplete.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '));
        lines.filter_map(|(pid, started)| Some((pid.parse().ok()?, started.parse().ok()?))).collect()
    }

    /// Returns pid and start time of the first process, once they are recorded.
    pub(crate) fn pid(&self) -> Option<(u32, u64)> {
        self.pids().first().copied()
    }

    fn content(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = openat(self.open()?, name, OFlags::RDONLY | OFlags::NONBLOCK | NO_LINK, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        File::from(file).take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn open(&self) -> io::Result<OwnedFd> {
        Ok(openat(CWD, &self.0, OFlags::PATH | OFlags::DIRECTORY | NO_LINK, Mode::empty())?)
    }

    /// Binds the socket of the agent, which must not exist yet.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        let dir = self.open()?;
        // A socket's name holds 107 bytes; a data folder's path may be longer.
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Connects to the agent's socket. Anything else in its place is refused.
    pub(crate) async fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        self.connect_to(Path::new(SOCKET)).await
    }

    /// Connects to the socket at `path`, relative to the folder, like [`BoxFolder::connect`].
    pub(crate) async fn connect_to(&self, path: &Path) -> io::Result<tokio::net::UnixStream> {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let socket = openat2(self.open()?, path, OFlags::PATH | NO_LINK, Mode::empty(), within)?;
        if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::ErrorKind::NotFound.into());
        }
        connect_unix(&socket).await
    }
}

const NO_LINK: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// Returns the folders in `dir` that are named as boxes or slots are.
fn folders_in(dir: &Path) -> io::Result<Vec<(SandboxId, BoxFolder)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(id) = entry.file_name().to_str().and_then(|name| SandboxId::parse(name).ok()) {
            found.push((id, BoxFolder(entry.path())));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;

    use super::*;

    fn made() -> (tempfile::TempDir, BoxFolder) {
        let temp = tempfile::tempdir().unwrap();
        let folders = Folders::make(temp.path().join("proot"), 0o700).unwrap();
        let folder = folders.of(&SandboxId::from_entropy([3; 10]));
        folder.make().unwrap();
        folder.write(&Record::new(Vec::new())).unwrap();
        (temp, folder)
    }

    #[test]
    fn what_was_written_is_read_and_what_is_torn_is_not() {
        let (_temp, folder) = made();
        assert_eq!(folder.read(), Some(Record::new(Vec::new())));
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
        let mut record = Record::new(Vec::new());
        record.id_base = Some(7);
        let record = serde_json::to_vec(&record).unwrap();
        fs::write(&secret, &record).unwrap();
        fs::remove_file(folder.path().join("box.json")).unwrap();
        symlink(&secret, folder.path().join("box.json")).unwrap();
        symlink(&secret, folder.path().join("pid")).unwrap();
        assert_eq!((folder.read(), folder.pid()), (None, None));
        assert!(folder.write(&Record::new(Vec::new())).is_err() && fs::read(&secret).unwrap() == record);
        let elsewhere = temp.path().join("elsewhere.sock");
        let listener = UnixListener::bind(&elsewhere).unwrap();
        listener.set_nonblocking(true).unwrap();
        symlink(&elsewhere, folder.path().join(SOCKET)).unwrap();
        assert!(folder.connect().await.is_err());
        assert!(listener.accept().is_err(), "no connection was made");
        // The folder itself may be a link too.
        let real = temp.path().join("real");
        let link = BoxFolder(temp.path().join("link"));
        fs::rename(folder.path(), &real).unwrap();
        symlink(&real, link.path()).unwrap();
        assert!(link.open().is_err() && link.read().is_none() && link.connect().await.is_err());
    }
}
