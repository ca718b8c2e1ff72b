//! Snapshots, as stored.

use async_trait::async_trait;
use domain::{OwnerId, Resources, SandboxId, SnapshotId, Timestamp};

use super::error::Result;

/// State of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotState {
    /// The provider was asked for it, or is about to be.
    Creating,
    /// Sandboxes can be made of it.
    Ready,
    /// The provider is to remove it.
    Destroying,
}

impl SnapshotState {
    /// Returns the name in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SnapshotState::Creating => "creating",
            SnapshotState::Ready => "ready",
            SnapshotState::Destroying => "destroying",
        }
    }

    /// Returns the state of this name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Creating, Self::Ready, Self::Destroying].into_iter().find(|state| state.as_str() == text)
    }
}

/// A snapshot, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub id: SnapshotId,
    /// Name that the caller gave it.
    pub name: Option<String>,
    /// Owner of the sandbox that it was taken of.
    pub owner: Option<OwnerId>,
    /// Sandbox that it was taken of.
    pub sandbox: SandboxId,
    /// Provider that keeps it.
    pub provider: String,
    /// Image of the sandbox.
    pub image: String,
    /// Size of the sandbox.
    pub resources: Resources,
    pub state: SnapshotState,
    /// True for one that a fork takes for itself. No bound on numbers counts it.
    pub is_temporary: bool,
    /// True for the files of a template. It is removed when no template starts from it any more.
    pub is_of_template: bool,
    /// True if it has the memory of the sandbox and not only its files.
    pub has_memory: bool,
    /// Bytes that it takes; 0 until it is ready.
    pub size_bytes: u64,
    pub created_at: Timestamp,
}

/// Bounds on snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotBounds {
    /// Maximum number of them.
    pub count: u64,
    /// Maximum number of those of one owner; 0 for none.
    pub per_owner: u64,
    /// Maximum number of bytes of all of them; 0 for none.
    pub bytes: u64,
    /// Bytes that count to the maximum although no snapshot has them any more.
    pub left_bytes: u64,
}

/// Outcome of storing a new snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewSnapshot {
    Done,
    /// There are as many as there may be.
    TooMany,
    /// The owner has as many as one may have.
    TooManyOfOwner,
    /// They take as many bytes as they may.
    TooLarge,
}

/// Selection of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotFilter {
    pub owner: Option<OwnerId>,
    pub sandbox: Option<SandboxId>,
    /// True to leave out the files of templates.
    pub without_templates: bool,
}

/// Place in the list of snapshots, after which it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotCursor {
    pub created_at: Timestamp,
    pub id: SnapshotId,
}

/// Transactions on snapshots.
#[async_trait]
pub trait SnapshotStore {
    /// Stores a snapshot in state `creating`, unless a bound is reached. Concurrent calls never exceed
    /// the bound on their number together.
    async fn insert_snapshot(&self, snapshot: &Snapshot, bounds: SnapshotBounds) -> Result<NewSnapshot>;

    /// Stores that a snapshot is ready, with its content; one that is temporary stays in state `creating`.
    /// Returns the stored row, or `None` if it would exceed the bound on bytes or is not in state `creating`.
    async fn complete_snapshot(
        &self,
        id: &SnapshotId,
        size_bytes: u64,
        has_memory: bool,
        bounds: SnapshotBounds,
    ) -> Result<Option<Snapshot>>;

    /// Returns one snapshot in any state.
    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>>;

    /// Returns ready snapshots that match, the newest first, those after `after`, at most `limit`.
    async fn snapshots(
        &self,
        filter: &SnapshotFilter,
        after: Option<&SnapshotCursor>,
        limit: u32,
    ) -> Result<Vec<Snapshot>>;

    /// Returns the ids of the ready snapshots that a provider keeps.
    async fn snapshots_of(&self, provider: &str) -> Result<Vec<SnapshotId>>;

    /// Returns the snapshots that are not ready.
    async fn unfinished_snapshots(&self) -> Result<Vec<Snapshot>>;

    /// Stores that a snapshot is to be removed. Returns `None` if there is no such row.
    async fn begin_snapshot_removal(&self, id: &SnapshotId) -> Result<Option<Snapshot>>;

    /// Deletes the row of a snapshot that is to be removed; `false` if there is none.
    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool>;
}
