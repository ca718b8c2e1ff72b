//! Files, as the box's user sees them: every path is resolved by this process,
//! inside the box, so that none can lead anywhere else.

mod find;
mod path;
mod read;
mod remove;
mod write;

use guest_protocol::{Chmod, FileInfo, PathOnly, Rename};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat, chmodat, mkdirat, readlinkat, renameat, statat};
use rustix::io::Errno;

use super::failure::{Result, invalid, refused};

pub(crate) use find::{glob, list};
pub(crate) use path::checked;
pub(crate) use read::{Content, read};
pub(crate) use remove::delete;
pub(crate) use write::write;

/// After so many entries everybody else has a turn.
const ENTRIES_PER_TURN: usize = 256;
/// Permission bits, with set-id and sticky ones.
const MODE_MAX: u32 = 0o7777;

/// Describes one file; a link itself.
pub(crate) fn stat(request: &PathOnly) -> Result<FileInfo> {
    let path = checked(&request.path)?;
    info(&path)
}

/// Describes what is at a checked path.
fn info(path: &str) -> Result<FileInfo> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| refused(path, errno))?;
    Ok(described(path, &stat))
}

fn described(path: &str, stat: &Stat) -> FileInfo {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let target = (kind == FileType::Symlink)
        .then(|| readlinkat(CWD, path, Vec::new()).ok())
        .flatten()
        .map(|target| target.to_string_lossy().into_owned());
    FileInfo {
        name: path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/").to_owned(),
        path: path.to_owned(),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        is_dir: kind == FileType::Directory,
        is_symlink: kind == FileType::Symlink,
        target,
        modified_ms: stat.st_mtime.saturating_mul(1000).saturating_add_unsigned(stat.st_mtime_nsec / 1_000_000),
        mode: stat.st_mode & MODE_MAX,
    }
}

/// Moves a file or directory.
pub(crate) fn rename(request: &Rename) -> Result<()> {
    let (old, new) = (checked(&request.old_path)?, checked(&request.new_path)?);
    statat(CWD, &*old, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| refused(&old, errno))?;
    make_parents(&new)?;
    renameat(CWD, &*old, CWD, &*new).map_err(|errno| refused(&new, errno))
}

/// Sets permission bits.
pub(crate) fn chmod(request: &Chmod) -> Result<()> {
    let path = checked(&request.path)?;
    if request.mode > MODE_MAX {
        return Err(invalid(format!("{:o} is not a mode; the highest is 7777", request.mode)));
    }
    chmodat(CWD, &*path, Mode::from_raw_mode(request.mode), AtFlags::empty()).map_err(|errno| refused(&path, errno))
}

/// Makes the directories that lead to a checked path.
fn make_parents(path: &str) -> Result<()> {
    let Some((parent, _)) = path.rsplit_once('/') else { return Ok(()) };
    if parent.is_empty() || statat(CWD, parent, AtFlags::empty()).is_ok() {
        return Ok(());
    }
    for (at, _) in parent.match_indices('/').skip(1).chain([(parent.len(), "")]) {
        let dir = &parent[..at];
        match mkdirat(CWD, dir, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(refused(dir, errno)),
        }
    }
    Ok(())
}
