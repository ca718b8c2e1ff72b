//! Moves of files and directories.

use guest_protocol::Rename;
use rustix::fs::{CWD, renameat};
use rustix::io::Errno;

use super::exists;
use super::path::{check, split};
use super::write::Parents;
use crate::failure::{Result, invalid, refused};

/// Moves a file, a link itself, or a directory; replaces what `rename(2)` replaces.
pub(crate) async fn rename(request: &Rename) -> Result<()> {
    let old = &check(&request.old_path)?;
    let new = &check(&request.new_path)?;
    split(old.bytes())?;
    let (new_dir, _) = split(new.bytes())?;
    if !exists(old.bytes()) {
        return Err(refused(old, Errno::NOENT));
    }
    let mut parents = Parents::default();
    parents.make(new_dir).map_err(|errno| refused(new, errno))?;
    match renameat(CWD, old.bytes(), CWD, new.bytes()) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Err(refused(old, Errno::NOENT)),
        Err(Errno::INVAL) => return Err(invalid(format!("{old} cannot be moved into itself"))),
        Err(Errno::XDEV) => super::copy::move_across(old, new).await?,
        Err(errno) => return Err(refused(new, errno)),
    }
    parents.keep();
    Ok(())
}
