//! Directories of a sandbox: as archives, and watched.

use std::sync::Arc;

use providers::{Amend, Amended, ByteStream, FileChanges, Guest, Pack, Unpacked};
use serde_json::json;

use crate::control::error::Result;
use crate::control::service::Control;
use crate::events::EventType;
use crate::operation_metrics::Operation;

impl Control {
    /// Opens an archive of a directory; see [`Guest::archive`]. Only the opening is counted.
    ///
    /// # Errors
    /// As [`Guest::archive`].
    pub async fn archive(&self, id: &str, path: &str) -> Result<ByteStream> {
        // A pause waits for its end, not only for its opening.
        let using = self.pauses.in_use.begin(id, Operation::FileArchive);
        let archive = |guest: Arc<dyn Guest>| async move { guest.archive(path).await };
        self.inside(Operation::FileArchive, id, archive).await.map(|(_, bytes)| using.until_the_end(bytes))
    }

    /// Describes a directory; see [`Guest::manifest`]. Only the opening is counted.
    ///
    /// # Errors
    /// As [`Guest::manifest`].
    pub async fn manifest(&self, id: &str, path: &str, checksum: bool) -> Result<ByteStream> {
        let using = self.pauses.in_use.begin(id, Operation::FileManifest);
        let manifest = |guest: Arc<dyn Guest>| async move { guest.manifest(path, checksum).await };
        self.inside(Operation::FileManifest, id, manifest).await.map(|(_, lines)| using.until_the_end(lines))
    }

    /// Packs chosen files; see [`Guest::pack`]. Only the opening is counted.
    ///
    /// # Errors
    /// As [`Guest::pack`].
    pub async fn pack(&self, id: &str, request: &Pack) -> Result<ByteStream> {
        let using = self.pauses.in_use.begin(id, Operation::FileArchive);
        let pack = |guest: Arc<dyn Guest>| async move { guest.pack(request).await };
        self.inside(Operation::FileArchive, id, pack).await.map(|(_, bytes)| using.until_the_end(bytes))
    }

    /// Changes many files; see [`Guest::amend`].
    ///
    /// # Errors
    /// As [`Guest::amend`].
    pub async fn amend_files(&self, id: &str, request: &Amend) -> Result<Amended> {
        let amend = |guest: Arc<dyn Guest>| async move { guest.amend(request).await };
        let (sandbox, amended) = self.inside(Operation::FileAmend, id, amend).await?;
        if amended.removed > 0 {
            // One event for all.
            let data = json!({"path": request.path, "files": amended.removed});
            self.publish(EventType::FileDeleted, Some(&sandbox.id), data);
        }
        Ok(amended)
    }

    /// Watches files; see [`Guest::watch`]. Only the opening is counted, and is a use of the sandbox: an editor
    /// that is left open would keep it from pausing.
    ///
    /// # Errors
    /// As [`Guest::watch`].
    pub async fn watch_files(&self, id: &str, path: &str, recursive: bool) -> Result<FileChanges> {
        let watch = |guest: Arc<dyn Guest>| async move { guest.watch(path, recursive).await };
        self.inside(Operation::FileWatch, id, watch).await.map(|(_, changes)| changes)
    }

    /// Unpacks an archive below a directory; see [`Guest::unpack`].
    ///
    /// # Errors
    /// As [`Guest::unpack`].
    pub async fn unpack(&self, id: &str, path: &str, archive: ByteStream) -> Result<Unpacked> {
        let unpack = |guest: Arc<dyn Guest>| async move { guest.unpack(path, archive).await };
        let (sandbox, unpacked) = self.inside(Operation::FileUnpack, id, unpack).await?;
        if unpacked.members > 0 {
            // One event for all, since there may be a million files.
            let data = json!({"path": path, "files": unpacked.members});
            self.publish(EventType::FileWritten, Some(&sandbox.id), data);
        }
        Ok(unpacked)
    }
}
