//! Snapshots of sandboxes, and copies of sandboxes.

use api::{ForkRequest, Sandbox, SnapshotRequest, SnapshotSummary, Status};
use reqwest::Method;

use crate::connection::{Patience, Size};
use crate::path::segment;
use crate::sandbox::sandbox_path;
use crate::{Client, Result};

/// Snapshots.
impl Client {
    /// Keeps the files of a sandbox as a new snapshot. [`crate::api::SpawnRequest::snapshot`] makes
    /// sandboxes of it.
    ///
    /// # Errors
    /// `not_supported` if its provider keeps no snapshots, `resource_limit` if there are as many as there
    /// may be, `not_found` if there is no sandbox of that id; another [`crate::Error`] if no answer comes.
    pub async fn take_snapshot(&self, sandbox: &str, request: &SnapshotRequest) -> Result<SnapshotSummary> {
        self.send_json(Method::POST, &sandbox_path(sandbox, "/snapshots")?, request, Patience::Long).await
    }

    /// Returns every snapshot, the newest first.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotSummary>> {
        self.get_list("/snapshots").await
    }

    /// Returns one snapshot.
    ///
    /// # Errors
    /// `not_found` if there is none of that id; another [`crate::Error`] if no answer comes.
    pub async fn snapshot(&self, id: &str) -> Result<SnapshotSummary> {
        self.get(&snapshot_path(id)?).await
    }

    /// Removes a snapshot; sandboxes that were made of it go on.
    ///
    /// # Errors
    /// `not_found` if there is none of that id; another [`crate::Error`] if no answer comes.
    pub async fn delete_snapshot(&self, id: &str) -> Result<Status> {
        self.delete(&snapshot_path(id)?, Patience::Long).await
    }

    /// Makes copies of a sandbox, all that are asked for or none. Dropping the future makes the server
    /// remove them.
    ///
    /// # Errors
    /// As [`Client::take_snapshot`] and [`Client::spawn`].
    pub async fn fork(&self, sandbox: &str, request: &ForkRequest) -> Result<Vec<Sandbox>> {
        let path = sandbox_path(sandbox, "/fork")?;
        self.call(self.with_json(self.request(Method::POST, &path, Patience::Long), request)?, Size::List).await
    }
}

fn snapshot_path(id: &str) -> Result<String> {
    Ok(format!("/snapshots/{}", segment("the snapshot id", id)?))
}
