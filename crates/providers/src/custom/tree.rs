//! Directories: their description, chosen files of them, and changes of many at once.

use api::{AmendRequest, FileAttributes, PackRequest};

use super::files::pieces;
use super::guest::CustomGuest;
use crate::{Amend, AmendFailure, Amended, ByteStream, Error, Pack, Result};

/// Describes a directory; see [`crate::Guest::manifest`].
pub(super) async fn manifest(guest: &CustomGuest, path: &str, checksum: bool) -> Result<ByteStream> {
    const ACTION: &str = "describe a directory";
    let opened = guest.remote.client.read_manifest(guest.sandbox(), path, checksum);
    Ok(pieces(ACTION, guest.ask_of(ACTION, path, opened).await?, None))
}

/// Packs chosen files; see [`crate::Guest::pack`].
pub(super) async fn pack(guest: &CustomGuest, wanted: &Pack) -> Result<ByteStream> {
    const ACTION: &str = "pack files";
    let asked = PackRequest { path: wanted.path.clone(), paths: wanted.paths.clone() };
    // A read that is asked for by POST goes where writes go.
    let client = guest.writing()?;
    let opened = client.pack_files(guest.sandbox(), &asked);
    Ok(pieces(ACTION, guest.ask_of(ACTION, &wanted.path, opened).await?, None))
}

/// Changes many files; see [`crate::Guest::amend`].
pub(super) async fn amend(guest: &CustomGuest, wanted: &Amend) -> Result<Amended> {
    const ACTION: &str = "change files";
    let attributes = wanted.attributes.iter().map(|attributes| FileAttributes {
        path: attributes.path.clone(),
        mode: attributes.mode.map(|mode| format!("{mode:04o}")),
        mtime: attributes.mtime.clone(),
    });
    let asked =
        AmendRequest { path: wanted.path.clone(), remove: wanted.remove.clone(), attributes: attributes.collect() };
    let client = guest.writing()?;
    let api::Amended { removed, changed, failed, failures } =
        guest.ask_of(ACTION, &wanted.path, client.amend_files(guest.sandbox(), &asked)).await?;
    if failures.len() > wanted.remove.len() + wanted.attributes.len() {
        return Err(Error::failed(ACTION, "the other service returned more than requested"));
    }
    let failures = failures.into_iter().map(|failure| AmendFailure { path: failure.path, message: failure.message });
    Ok(Amended { removed, changed, failed, failures: failures.collect() })
}
