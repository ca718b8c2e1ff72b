//! Errors and free space of the disk that holds the store.

use std::io;
use std::path::Path;

use host_disk::Room;

use crate::config::Reserve;
use crate::error::{Error, Result};

/// Returns whether the error means that the disk has no room, for bytes or for files.
pub(super) fn is_full(error: &io::Error) -> bool {
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge].contains(&error.kind())
}

/// Converts an I/O error of the store's disk; a full disk becomes [`Error::Full`].
pub(super) fn failed(action: &'static str, error: io::Error) -> Error {
    if !is_full(&error) {
        return Error::failed(action, error);
    }
    Error::Full(
        "the disk with this server's images is full; remove images (`tidebox image prune`) or free disk space"
            .to_owned(),
    )
}

/// Returns [`failed`] for `action`, to map errors with.
pub(super) fn failing(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| failed(action, error)
}

/// Fails unless more of the disk of `dir` is free than the reserve.
pub(super) fn room(dir: &Path, reserve: Reserve) -> Result<()> {
    let room = free(dir)?;
    if reserve.is_free(room) {
        return Ok(());
    }
    let (left, stay, of) = match room.entries {
        Some(left) if left <= reserve.inodes => (left, reserve.inodes, "inodes"),
        _ => (room.bytes, reserve.bytes, "bytes"),
    };
    Err(Error::Full(format!(
        "the disk is too full for the image: {left} {of} are free, and images must leave {stay} free; remove images \
         (`tidebox image prune`) or free disk space"
    )))
}

/// Returns the free space of the disk of `dir`.
pub(super) fn free(dir: &Path) -> Result<Room> {
    Room::of(dir).map_err(|error| failed("check the free disk space for images", error))
}
