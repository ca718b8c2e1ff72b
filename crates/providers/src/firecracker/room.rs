//! Folder that the process of a machine works in. In a jail it is the root of the process.
//!
//! ```text
//! <box>/console                              FIFO with the output of the process
//!       paused                               there while the machine is paused
//!       vm/                                  the folder, or in a jail
//!       jail/<program>/<sandbox id>/root/    this one
//!           kernel, initrd, image            files that all boxes of the image share
//!           changes                          drive with what the box changes
//!           log                              FIFO with the messages of Firecracker
//!           api.sock, agent.sock             made by the process
//! ```

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Gid, Mode, Uid, chownat, mknodat};

use crate::local::folder::BoxFolder;

/// Names of the files, which are those that the process sees too.
pub(super) const KERNEL: &str = "kernel";
pub(super) const INITRD: &str = "initrd";
pub(super) const IMAGE: &str = "image";
pub(super) const CHANGES: &str = "changes";
pub(super) const LOG: &str = "log";
pub(super) const API: &str = "api.sock";
pub(super) const VSOCK: &str = "agent.sock";

const CONSOLE: &str = "console";
/// Mark of a machine that is paused, or being paused: Firecracker says so only while it answers.
const PAUSED: &str = "paused";
const UNJAILED: &str = "vm";
pub(super) const JAILS: &str = "jail";

/// Folder of one process, relative to that of its box.
#[derive(Debug, Clone)]
pub(super) struct Room {
    folder: BoxFolder,
    relative: PathBuf,
}

impl Room {
    /// Returns the folder of a box that is to be made: in a jail of this program, or in none.
    pub(super) fn new(folder: &BoxFolder, jailed: Option<&OsStr>) -> Room {
        let relative = match jailed {
            Some(program) => Path::new(JAILS).join(program).join(folder.name()).join("root"),
            None => PathBuf::from(UNJAILED),
        };
        Room { folder: folder.clone(), relative }
    }

    /// Finds the folder of a box that was made, by this server or an earlier one.
    pub(super) fn find(folder: &BoxFolder) -> Room {
        let programs = fs::read_dir(folder.path().join(JAILS));
        let program = programs.ok().and_then(|mut programs| programs.find_map(Result::ok)).map(|it| it.file_name());
        Room::new(folder, program.as_deref())
    }

    /// Makes the folder for a process of the user `id`, with its FIFOs; `None` for the server's own.
    pub(super) fn make(&self, id: Option<u32>) -> io::Result<()> {
        let path = self.path();
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        give(&path, id)?;
        for (fifo, id) in [(self.console(), None), (path.join(LOG), id)] {
            mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            give(&fifo, id)?;
        }
        Ok(())
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join(&self.relative)
    }

    /// Returns the path of a file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Returns the path of the FIFO with the output of the process.
    pub(super) fn console(&self) -> PathBuf {
        self.folder.path().join(CONSOLE)
    }

    /// Marks the machine as paused, which outlives this server.
    pub(super) fn mark_paused(&self) -> io::Result<()> {
        fs::write(self.folder.path().join(PAUSED), [])
    }

    pub(super) fn unmark_paused(&self) {
        // A mark that stays costs a resume, which changes nothing.
        let _ = fs::remove_file(self.folder.path().join(PAUSED));
    }

    pub(super) fn is_marked_paused(&self) -> bool {
        self.folder.path().join(PAUSED).exists()
    }

    /// Connects to one of its sockets. Anything else in its place is refused: the process may have been
    /// taken over by its guest.
    pub(super) async fn connect(&self, socket: &str) -> io::Result<tokio::net::UnixStream> {
        self.folder.connect_to(&self.relative.join(socket)).await
    }
}

/// Gives a file to the user of a box; one without a user leaves it as it is.
pub(super) fn give(path: &Path, id: Option<u32>) -> io::Result<()> {
    let Some(id) = id else { return Ok(()) };
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    Ok(chownat(CWD, path, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
}
