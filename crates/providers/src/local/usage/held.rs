//! Deleted files that processes of a box keep on disk.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, stat, statfs};

use super::count::Count;
use crate::local::process::descendants;

/// File system type of an overlay, which most boxes write through.
const OVERLAY: FsWord = 0x794c_7630;

/// Counts the files without a name on `device`, or on an overlay, that the process `first` and
/// its descendants hold open or mapped. A descriptor in transit through a socket is in no table,
/// and is not seen.
pub(super) fn count(count: &mut Count, first: u32, device: u64) {
    for pid in descendants(first) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        files(count, &process.join("fd"), device, |_| true);
        // Reading the names is cheaper than a `stat` of the files, of which there are many.
        files(count, &process.join("map_files"), device, |link| {
            fs::read_link(link).is_ok_and(|to| to.as_os_str().as_encoded_bytes().ends_with(b" (deleted)"))
        });
    }
}

/// Counts the files that the links in a folder of a process lead to.
fn files(count: &mut Count, links: &Path, device: u64, may_be: impl Fn(&Path) -> bool) {
    for link in fs::read_dir(links).into_iter().flatten().flatten() {
        if count.is_over() {
            return;
        }
        let link = link.path();
        if !may_be(&link) {
            continue;
        }
        // A file without a name is reached only through the link; `stat` does not open it.
        let Ok(found) = stat(&link) else { continue };
        if found.st_nlink == 0 && (found.st_dev == device || statfs(&link).is_ok_and(|disk| disk.f_type == OVERLAY)) {
            count.add(&found);
        }
    }
}
