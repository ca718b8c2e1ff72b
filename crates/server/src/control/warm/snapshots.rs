//! Snapshots of boxes in which the commands of an entry of the warm pool have run.
//!
//! Like the boxes of the pool they are not stored: after a crash they are snapshots without a row, which the
//! reconciler removes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{PrepareCommand, SnapshotId, Timestamp};
use parking_lot::Mutex;
use providers::{Provider, Taken};

use super::pool::Kind;
use crate::control::snapshots::in_progress::SnapshotInHand;

/// Snapshot of a box in which commands of an entry have run.
#[derive(Debug)]
pub struct WarmSnapshot {
    pub id: SnapshotId,
    pub provider: Arc<dyn Provider>,
    /// Name of the entry.
    pub name: String,
    /// Index of the entry.
    pub(in crate::control) entry: usize,
    /// Kind of the boxes that are made of it.
    pub(in crate::control) kind: Kind,
    /// Digest of their image, where the provider knows one.
    pub(in crate::control) digest: Option<String>,
    /// Number of the commands that have run; the others run in each box.
    pub(in crate::control) done: usize,
    /// Time at which the commands had run.
    pub(in crate::control) since: Instant,
    pub created_at: Timestamp,
    pub taken: Taken,
    /// Keeps the reconciler from removing it.
    pub(in crate::control) _in_hand: SnapshotInHand,
}

impl WarmSnapshot {
    /// Returns the image of its box.
    pub fn image(&self) -> &str {
        &self.kind.image
    }

    /// Returns those of `commands` that run in each box of it.
    pub(in crate::control) fn left<'a>(&self, commands: &'a [PrepareCommand]) -> &'a [PrepareCommand] {
        commands.get(self.done..).unwrap_or_default()
    }
}

/// Snapshots of the entries of the warm pool, at most one of each.
#[derive(Debug)]
pub(in crate::control) struct WarmSnapshots(Vec<Mutex<Option<Arc<WarmSnapshot>>>>);

impl WarmSnapshots {
    pub(in crate::control) fn new(entries: usize) -> WarmSnapshots {
        WarmSnapshots((0..entries).map(|_| Mutex::default()).collect())
    }

    /// Returns the snapshot of an entry.
    pub(in crate::control) fn of_entry(&self, entry: usize) -> Option<Arc<WarmSnapshot>> {
        self.0[entry].lock().clone()
    }

    /// Returns a snapshot that boxes of this kind are made of.
    pub(in crate::control) fn of_kind(&self, kind: &Kind) -> Option<Arc<WarmSnapshot>> {
        self.0.iter().find_map(|kept| kept.lock().as_ref().filter(|snapshot| snapshot.kind == *kind).cloned())
    }

    /// Returns all of them.
    pub(in crate::control) fn all(&self) -> Vec<Arc<WarmSnapshot>> {
        self.0.iter().filter_map(|kept| kept.lock().clone()).collect()
    }

    /// Takes the snapshot of an entry away if it is not of this kind and digest, or as old as `max_age` at
    /// `now`.
    pub(in crate::control) fn outdated(
        &self,
        entry: usize,
        kind: &Kind,
        digest: Option<&str>,
        max_age: Duration,
        now: Instant,
    ) -> Option<Arc<WarmSnapshot>> {
        self.0[entry].lock().take_if(|kept| {
            kept.kind != *kind || kept.digest.as_deref() != digest || now.duration_since(kept.since) >= max_age
        })
    }

    /// Keeps a snapshot, and returns the one that it replaces.
    pub(in crate::control) fn keep(&self, snapshot: WarmSnapshot) -> Option<Arc<WarmSnapshot>> {
        self.0[snapshot.entry].lock().replace(Arc::new(snapshot))
    }

    /// Takes a snapshot away, unless another has its place.
    pub(in crate::control) fn give_up(&self, snapshot: &WarmSnapshot) -> Option<Arc<WarmSnapshot>> {
        self.0[snapshot.entry].lock().take_if(|kept| kept.id == snapshot.id)
    }

    /// Takes the snapshot of an entry away.
    pub(in crate::control) fn take(&self, entry: usize) -> Option<Arc<WarmSnapshot>> {
        self.0[entry].lock().take()
    }
}
