//! Listing.

use guest_protocol::{ANSWER_BYTES_MAX, FileInfo, PathOnly};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, open, statat};
use rustix::io::Errno;
use tokio::task::yield_now;

use super::path::{check, normal};
use super::{ENTRIES_PER_TURN, describe, directory_refused};
use crate::failure::{Result, invalid, refused};

/// What JSON takes for one entry besides name, path and target.
const ENTRY_BYTES: usize = 160;
/// JSON may need more than one byte for one of ours.
const NAMES_BYTES_MAX: usize = ANSWER_BYTES_MAX / 3;

/// The entries of a directory, sorted by name. A link in it is described itself.
pub(crate) async fn list(request: &PathOnly) -> Result<Vec<FileInfo>> {
    let path = check(&request.path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let dir = open(path, flags, Mode::empty()).map_err(|errno| directory_refused(path, errno))?;
    let mut entries = Dir::read_from(&dir).map_err(|errno| refused(path, errno))?;
    let shown = normal(path);
    let mut infos = Vec::new();
    let mut bytes = 0;
    let mut turn = 0;
    while let Some(entry) = entries.read() {
        let entry = entry.map_err(|errno| refused(path, errno))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Removed meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(refused(path, errno)),
        };
        let text = name.to_string_lossy().into_owned();
        let full = format!("{}/{text}", shown.trim_end_matches('/'));
        let info = describe(text, full, &stat, &dir, name.to_bytes());
        bytes += ENTRY_BYTES + info.name.len() + info.path.len() + info.target.as_ref().map_or(0, String::len);
        if bytes > NAMES_BYTES_MAX {
            return Err(invalid(format!(
                "{path}: the directory has more entries than one answer can describe, which is {} MiB or some 70,000; \
                 run `ls` or `find` in the box",
                NAMES_BYTES_MAX >> 20
            )));
        }
        infos.push(info);
        turn += 1;
        if turn % ENTRIES_PER_TURN == 0 {
            yield_now().await;
        }
    }
    infos.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(infos)
}
