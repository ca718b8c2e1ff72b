//! Files of a box: a copy of its image, and what every box has.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use images::ImageGuard;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, chownat, mknodat};

use crate::local::agent_file::{agent_program, agent_version};
use crate::local::tree_copy::{copy_box, copy_tree};
use host_disk::remove_tree;

/// Devices of the host that boxes see, with the permissions that its users have.
pub(super) const DEVICES: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"];

/// Files that a box begins with.
#[derive(Debug)]
pub(super) enum Origin {
    /// Those of an image.
    Image(ImageGuard),
    /// Those of the generated root of the host, but for the content of the directories that are shown.
    Host(PathBuf, &'static [&'static str]),
    /// Those of another box.
    Snapshot(PathBuf),
}

impl Origin {
    fn copy(&self, to: &Path, id: Option<u32>) -> io::Result<()> {
        match self {
            Origin::Image(image) => copy_tree(image.root(), to, &[], id),
            Origin::Host(root, shown) => copy_tree(root, to, shown, id),
            Origin::Snapshot(root) => copy_box(root, to, id),
        }
    }
}

/// Makes the files of a box in its folder `dir`, with a copy of its origin. A box with an `id` of its own
/// can write only what is given to that id. Blocks.
pub(super) fn make(dir: &Path, origin: &Origin, id: Option<u32>) -> io::Result<()> {
    if id.is_some() {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
    }
    let root = dir.join("root");
    for dir in [&root, &dir.join("tmp")] {
        DirBuilder::new().mode(0o700).create(dir)?;
        own(dir, id)?;
    }
    let life = dir.join("life");
    mknodat(CWD, &life, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    own(&life, id)?;
    origin.copy(&root, id)?;
    furnish(&root, id)?;
    // A box that runs as the server's user could write to a shared one.
    if id.is_none() { write_program(&dir.join("agent")) } else { Ok(()) }
}

/// Changes the owner of `path` to the user of a box.
fn own(path: &Path, id: Option<u32>) -> io::Result<()> {
    Ok(chownat(CWD, path, id.map(Uid::from_raw), id.map(Gid::from_raw), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Makes the entries that every root has, with any image. `copy_tree` has left these names free.
fn furnish(root: &Path, id: Option<u32>) -> io::Result<()> {
    let dirs =
        [("dev", 0o755), ("dev/pts", 0o755), ("dev/shm", 0o1777), ("proc", 0o555), ("sys", 0o555), (".tidebox", 0o755)];
    for (dir, mode) in dirs {
        let path = root.join(dir);
        DirBuilder::new().mode(0o700).create(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        own(&path, id)?;
    }
    // Mount points for the files that are shown there.
    let devices = DEVICES.iter().filter(|name| **name != "pts").map(|name| format!("dev/{name}"));
    for file in devices.chain([".tidebox/agent".to_owned(), ".tidebox/life".to_owned()]) {
        let path = root.join(file);
        fs::File::create_new(&path)?;
        own(&path, id)?;
    }
    for (name, number) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        let path = root.join("dev").join(name);
        symlink(format!("/proc/self/fd{number}"), &path)?;
        own(&path, id)?;
    }
    Ok(())
}

/// Returns the agent's program in `base`, which only the server can write, and writes it if it is
/// missing.
pub(super) fn program(base: &Path) -> io::Result<PathBuf> {
    let path = base.join(format!("agent-{}", agent_version()));
    for entry in fs::read_dir(base)? {
        let other = entry?.path();
        let name = other.file_name().unwrap_or_default().to_string_lossy();
        // Running boxes have read theirs, and do not need it any more.
        if name.starts_with("agent-") && other != path {
            remove_tree(&other)?;
        }
    }
    if !path.exists() {
        let unfinished = base.join(format!("agent-new-{}", std::process::id()));
        write_program(&unfinished)?;
        fs::rename(&unfinished, &path)?;
    }
    Ok(path)
}

fn write_program(path: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(&agent_program())?;
    file.set_permissions(fs::Permissions::from_mode(0o555))
}
