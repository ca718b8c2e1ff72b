//! On-disk state of a box: enough for a later server to find and remove it.
//!
//! ```text
//! <data>/native/boxes/<sandbox id>/box.json     written before the box is made
//!                                  pid          written before the box runs
//!                                  agent.sock   the way to the agent
//!                                  layers/      its changes, owned by the box
//!                                  disk.img     or these, if they are bounded
//!                                  slots/       of a box that holds slots: a folder
//!                                               like this one for each
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use domain::SandboxId;
use guest_protocol::CgroupDir;
use serde::{Deserialize, Serialize};

/// Version of the format of [`Record`].
const FORMAT: u32 = 1;

#[derive(Debug, Clone)]
pub(super) struct Folders {
    /// Base folder, `<data>/native`.
    pub(super) base: PathBuf,
    /// Parent of the folders of boxes.
    pub(super) boxes: PathBuf,
    /// Removed boxes that are still to be deleted.
    pub(super) trash: PathBuf,
    /// Folders prepared for boxes.
    pub(super) stock: PathBuf,
}

impl Folders {
    pub(super) fn make(base: &Path) -> io::Result<Folders> {
        // Absolute, since the launcher gets these paths.
        let base = std::path::absolute(base)?;
        let [boxes, trash, stock] = ["boxes", "trash", "stock"].map(|name| base.join(name));
        let folders = Folders { base, boxes, trash, stock };
        for dir in [&folders.base, &folders.boxes, &folders.trash, &folders.stock] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        Ok(folders)
    }

    pub(super) fn of(&self, id: &SandboxId) -> BoxFolder {
        BoxFolder(self.boxes.join(id.as_str()))
    }
}

#[derive(Debug, Clone)]
pub(super) struct BoxFolder(PathBuf);

impl BoxFolder {
    pub(super) fn at(path: PathBuf) -> BoxFolder {
        BoxFolder(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn exists(&self) -> bool {
        self.0.symlink_metadata().is_ok()
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.0.join("layers")
    }

    pub(super) fn image(&self) -> PathBuf {
        self.0.join("disk.img")
    }

    /// Returns the folder of a slot.
    pub(super) fn slot(&self, id: &SandboxId) -> BoxFolder {
        BoxFolder(self.0.join("slots").join(id.as_str()))
    }

    /// Makes the parent folder of slots.
    pub(super) fn make_slots(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.0.join("slots"))
    }

    /// Returns the slots on disk; empty if the box never had one.
    pub(super) fn slots(&self) -> io::Result<Vec<(SandboxId, BoxFolder)>> {
        match folders_in(&self.0.join("slots")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Makes the folder, accessible to the server's user only.
    pub(super) fn make(&self) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(&self.0)
    }

    /// Makes its files, empty: an empty record means that there is no box.
    pub(super) fn touch(&self) -> io::Result<()> {
        ["box.json", "pid"].into_iter().try_for_each(|name| fs::write(self.0.join(name), []))
    }

    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        fs::write(self.0.join("box.json"), serde_json::to_vec(record)?)
    }

    /// Reads the record; `None` if there is no complete one, so that the box was never made.
    pub(super) fn read(&self) -> Option<Record> {
        let record: Record = serde_json::from_slice(&fs::read(self.0.join("box.json")).ok()?).ok()?;
        (record.format == FORMAT).then_some(record)
    }

    /// Returns the pid and the start time of the first process, once it is recorded.
    pub(super) fn pid(&self) -> Option<(u32, u64)> {
        let text = fs::read_to_string(self.0.join("pid")).ok()?;
        let (pid, started) = text.strip_suffix('\n')?.split_once(' ')?;
        Some((pid.parse().ok()?, started.parse().ok()?))
    }
}

/// Returns the folders in `dir` that are named as boxes or slots are.
pub(super) fn folders_in(dir: &Path) -> io::Result<Vec<(SandboxId, BoxFolder)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(id) = entry.file_name().to_str().and_then(|name| SandboxId::parse(name).ok()) {
            found.push((id, BoxFolder(entry.path())));
        }
    }
    Ok(found)
}

/// Resources of a box or a slot besides its folder.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Record {
    format: u32,
    /// First id of the box's range. A slot uses that of its box, and has none itself.
    pub(super) id_base: Option<u32>,
    pub(super) cgroups: Vec<CgroupDir>,
    /// Digest of the image that the box was made from; `None` for `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<String>,
    /// Path of the generated root that it uses.
    pub(super) skeleton: String,
    /// True for a box that holds slots.
    #[serde(default)]
    pub(super) holds_slots: bool,
    /// Uid of a slot, as its box numbers it; `None` for a box.
    #[serde(default)]
    pub(super) slot_uid: Option<u32>,
}

impl Record {
    pub(super) fn new(cgroups: Vec<CgroupDir>, skeleton: &Path) -> Record {
        Record { format: FORMAT, cgroups, skeleton: skeleton.display().to_string(), ..Record::default() }
    }
}
