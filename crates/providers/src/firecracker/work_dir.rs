//! Folder that the process of a machine works in. In a jail it is the root of the process.
//!
//! ```text
//! <box>/console                              FIFO with the output of the process
//!       paused                               there while the machine is paused
//!       unrenewed                            there while a machine that went on from disk has the time of then
//!       machine.json                         parameters of its process, to start it anew
//!       suspended/                           the machine while it has no process; see `saved`
//!       vm/                                  the folder, or in a jail
//!       jail/<program>/<sandbox id>/root/    this one
//!           kernel, initrd, image            files that all boxes of the image share
//!           changes                          drive with what the box changes
//!           state, memory                    files of the machine that this one was made from
//!           new-state, new-memory            files that it is written to
//!           log                              FIFO with the messages of Firecracker
//!           api.sock, agent.sock             made by the process
//! ```

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use guest_protocol::Vmm;
use host_disk::{remove_tree, replace_file};
use rustix::fs::{CWD, FileType, Gid, Mode, Uid, chownat, mknodat};
use serde::{Deserialize, Serialize};

use crate::local::folder::BoxFolder;

/// Names of the files, which are those that the process sees too.
pub(super) const KERNEL: &str = "kernel";
pub(super) const INITRD: &str = "initrd";
pub(super) const IMAGE: &str = "image";
pub(super) const CHANGES: &str = "changes";
pub(super) const STATE: &str = "state";
pub(super) const MEMORY: &str = "memory";
/// Names of the files that a machine is written to. The others may belong to several boxes.
pub(super) const NEW_STATE: &str = "new-state";
pub(super) const NEW_MEMORY: &str = "new-memory";
pub(super) const LOG: &str = "log";
pub(super) const API: &str = "api.sock";
pub(super) const VSOCK: &str = "agent.sock";

const CONSOLE: &str = "console";
const MACHINE: &str = "machine.json";
const SUSPENDED: &str = "suspended";
/// Mark of a machine that is paused, or being paused: Firecracker says so only while it answers.
const PAUSED: &str = "paused";
/// Mark of a machine that went on from disk, and does not know the time yet.
const UNRENEWED: &str = "unrenewed";
const UNJAILED: &str = "vm";
pub(super) const JAILS: &str = "jail";

/// Parameters of a process, and the size of its machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MachineFile {
    pub(super) vmm: Vmm,
    pub(super) memory_mb: u32,
    pub(super) vcpus: u32,
    /// Size of the drive with the changes, in mebibytes.
    pub(super) drive_mb: u32,
    /// Version of Firecracker.
    pub(super) version: String,
}

/// Folder of one process, relative to that of its box.
#[derive(Debug, Clone)]
pub(super) struct WorkDir {
    folder: BoxFolder,
    relative: PathBuf,
}

impl WorkDir {
    /// Returns the folder of a box that is to be made: in a jail of this program, or in none.
    pub(super) fn new(folder: &BoxFolder, jailed: Option<&OsStr>) -> WorkDir {
        let relative = match jailed {
            Some(program) => Path::new(JAILS).join(program).join(folder.name()).join("root"),
            None => PathBuf::from(UNJAILED),
        };
        WorkDir { folder: folder.clone(), relative }
    }

    /// Finds the folder of a box that was made, by this server or an earlier one.
    pub(super) fn find(folder: &BoxFolder) -> WorkDir {
        let programs = fs::read_dir(folder.path().join(JAILS));
        let program = programs.ok().and_then(|mut programs| programs.find_map(Result::ok)).map(|it| it.file_name());
        WorkDir::new(folder, program.as_deref())
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

    /// Removes what a process that has ended has left, so that another one can start: the program and the
    /// devices in a jail, sockets, and files that it was to be written to.
    pub(super) fn clear(&self) -> io::Result<()> {
        const KEPT: [&str; 7] = [KERNEL, INITRD, IMAGE, CHANGES, STATE, MEMORY, LOG];
        for entry in fs::read_dir(self.path())? {
            let entry = entry?;
            if KEPT.iter().any(|kept| *entry.file_name() == **kept) {
                continue;
            }
            let path = entry.path();
            if entry.file_type()?.is_dir() { remove_tree(&path)? } else { fs::remove_file(path)? }
        }
        Ok(())
    }

    /// Removes some of its files, as far as they are there.
    pub(super) fn remove<const N: usize>(&self, names: [&str; N]) -> io::Result<()> {
        for name in names {
            match fs::remove_file(self.file(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Moves the files that a machine was written to into another folder, out of the reach of its process.
    pub(super) fn take_written(&self, to: &Path) -> io::Result<()> {
        for (new, name) in [(NEW_STATE, STATE), (NEW_MEMORY, MEMORY)] {
            fs::rename(self.file(new), to.join(name))?;
            give(&to.join(name), Some(rustix::process::geteuid().as_raw()))?;
        }
        Ok(())
    }

    /// Writes the parameters of the process.
    pub(super) fn write_machine(&self, machine: &MachineFile) -> io::Result<()> {
        fs::write(self.folder.path().join(MACHINE), serde_json::to_vec(machine)?)
    }

    /// Writes other parameters over those that are there.
    pub(super) fn rewrite_machine(&self, machine: &MachineFile) -> io::Result<()> {
        replace_file(&self.folder.path().join(MACHINE), &serde_json::to_vec(machine)?)
    }

    /// Has the box be found after a power failure.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.folder.sync(MACHINE)
    }

    /// Reads the parameters of the process.
    pub(super) fn read_machine(&self) -> io::Result<MachineFile> {
        Ok(serde_json::from_slice(&fs::read(self.folder.path().join(MACHINE))?)?)
    }

    /// Returns the folder that the machine is written to so that it needs no process.
    pub(super) fn suspended(&self) -> PathBuf {
        self.folder.path().join(SUSPENDED)
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

    /// Marks the machine as one that is to be told the time, which outlives this server.
    pub(super) fn mark_unrenewed(&self) -> io::Result<()> {
        fs::write(self.folder.path().join(UNRENEWED), [])
    }

    pub(super) fn unmark_unrenewed(&self) {
        // A mark that stays has the time set once more.
        let _ = fs::remove_file(self.folder.path().join(UNRENEWED));
    }

    pub(super) fn is_marked_unrenewed(&self) -> bool {
        self.folder.path().join(UNRENEWED).exists()
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
    let uid = Uid::from_raw(id);
    let gid = Gid::from_raw(id);
    Ok(chownat(CWD, path, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
}
