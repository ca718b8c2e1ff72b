//! Copies of the files of boxes, of which other boxes are made.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use guest_protocol::Halt;
use rustix::fs::syncfs;

use super::tracer;
use crate::local::agent_file::AgentFile;
use crate::local::folder::BoxFolder;
use crate::local::plan::BoxPlan;
use crate::local::record::Record;
use crate::local::snapshot_folder::SnapshotFolder;
use crate::local::snapshots::not_taken;
use crate::local::tree_copy::copy_box;
use crate::local::usage::usage;
use crate::{DiskUsage, Error, Result};

/// Name of the file with the bytes of a box that do not count to its disk limit.
const BASE: &str = "base";

/// Returns the folder with the files of a snapshot.
pub(super) fn root(snapshot: &SnapshotFolder) -> PathBuf {
    snapshot.path().join("root")
}

/// Returns the bytes of the files of a box that do not count to its disk limit, and writes them to its folder:
/// those that it begins with, or of a copy those that the box began with which it is a copy of. `None` without a
/// limit, and where they cannot be counted in time.
pub(super) async fn base_bytes<C>(plan: &BoxPlan<'_, C>) -> io::Result<Option<u64>> {
    if plan.spec.resources.disk_mb == 0 {
        return Ok(None);
    }
    let dir = plan.folder.path();
    let files = dir.join("root");
    let base = dir.join(BASE);
    let copied = plan.snapshot.as_ref().filter(|_| plan.spec.is_copy).map(|snapshot| snapshot.path().join(BASE));
    let counting = tokio::task::spawn_blocking(move || {
        let known = copied.and_then(|copied| fs::read_to_string(copied).ok()?.parse().ok());
        let bytes = match known {
            Some(bytes) => bytes,
            None => match usage(&files, None)? {
                DiskUsage { is_cut: true, .. } => return Ok(None),
                DiskUsage { bytes, .. } => bytes,
            },
        };
        fs::write(base, bytes.to_string())?;
        Ok(Some(bytes))
    });
    counting.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Returns the error for processes that do not stand still.
fn not_still() -> Error {
    Error::Unavailable("processes of the box did not stop; try again".to_owned())
}

/// Copies the files of a box, which stands still meanwhile, into the folder of a snapshot. Returns their
/// bytes.
pub(super) async fn keep(agent: &AgentFile, folder: &BoxFolder, record: &Record, new: &SnapshotFolder) -> Result<u64> {
    let halt = Halt { id: record.id_base, roots: folder.pids() };
    let halted = tracer::halt(agent, &halt).await.map_err(not_taken)?.ok_or_else(not_still)?;
    let from = folder.path().join("root");
    let to = root(new);
    let copying = tokio::task::spawn_blocking(move || {
        DirBuilder::new().mode(0o700).create(&to)?;
        // They belong to the server until a box is made of them.
        copy_box(&from, &to, None)?;
        Ok(to)
    });
    let copied = copying.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    let was_still = halted.go_on().await.map_err(not_taken)?;
    let copied = copied.map_err(not_taken)?;
    if !was_still {
        return Err(not_still());
    }
    let base = folder.path().join(BASE);
    let kept_base = new.path().join(BASE);
    let finishing = tokio::task::spawn_blocking(move || {
        match fs::copy(base, kept_base) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        syncfs(File::open(&copied)?)?;
        usage(&copied, None)
    });
    let kept = finishing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    Ok(kept.map_err(not_taken)?.bytes)
}
