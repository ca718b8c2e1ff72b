//! Copies of the files of boxes, of which other boxes are made.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use guest_protocol::Halt;
use rustix::fs::syncfs;

use super::copy::copy_box;
use super::tracer;
use crate::local::agent_file::AgentFile;
use crate::local::folder::BoxFolder;
use crate::local::record::Record;
use crate::local::snapshot_folder::SnapshotFolder;
use crate::local::snapshots::not_taken;
use crate::local::usage::usage;
use crate::{Error, Result};

/// Returns the folder with the files of a snapshot.
pub(super) fn root(snapshot: &SnapshotFolder) -> PathBuf {
    snapshot.path().join("root")
}

/// Copies the files of a box, which stands still meanwhile, into the folder of a snapshot. Returns their
/// bytes.
pub(super) async fn keep(agent: &AgentFile, folder: &BoxFolder, record: &Record, new: &SnapshotFolder) -> Result<u64> {
    let moving = || Error::Unavailable("processes of the box do not stop; try again".to_owned());
    let halt = Halt { id: record.id_base, roots: folder.pids() };
    let halted = tracer::halt(agent, &halt).await.map_err(not_taken)?.ok_or_else(moving)?;
    let (from, to) = (folder.path().join("root"), root(new));
    let copy = move || {
        DirBuilder::new().mode(0o700).create(&to)?;
        // They belong to the server until a box is made of them.
        copy_box(&from, &to, None)?;
        Ok(to)
    };
    let copied = tokio::task::spawn_blocking(copy).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    let was_still = halted.go_on().await.map_err(not_taken)?;
    let copied = copied.map_err(not_taken)?;
    if !was_still {
        return Err(moving());
    }
    let finish = move || {
        syncfs(File::open(&copied)?)?;
        usage(&copied, None)
    };
    let kept = tokio::task::spawn_blocking(finish).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    Ok(kept.map_err(not_taken)?.bytes)
}
