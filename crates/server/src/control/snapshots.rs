//! Snapshots: the row, then the provider, then the outcome. Whatever a crash leaves is removed by the
//! reconciler.

mod as_image;
pub(super) mod fork;
pub(super) mod image_names;
pub(super) mod in_progress;
pub(super) mod spawn_options;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{OwnerId, SnapshotId};
use providers::{Chain, Provider, Snapshots};
use serde_json::json;

use self::in_progress::SnapshotInHand;
use super::conflict::Conflict;
use super::error::{Error, Result, provider_error};
use super::guest::access::runtime_error;
use super::limit::{Counted, Limit};
use super::resource::Resource;
use super::service::Control;
use super::unavailable::Unavailable;
use super::workers::box_host::BoxHost;
use super::workers::inventory::within;
use crate::events::EventType;
use crate::operation_metrics::Operation;
use store::{NewSnapshot, Sandbox, Snapshot, SnapshotBounds, SnapshotCursor, SnapshotFilter, SnapshotState};

/// Longest time to take, remove or convert one snapshot: that of a disk which is full of small files.
pub(super) const SNAPSHOT_WAIT: Duration = Duration::from_secs(600);
/// Deadline of a provider for the list of its snapshots.
const LIST_WAIT: Duration = Duration::from_secs(20);
/// Maximum length of a snapshot's name, in characters.
const NAME_CHARS_MAX: usize = 64;

/// A request for a snapshot.
#[derive(Debug, Clone, Default)]
pub struct NewSnapshotRequest {
    /// Name for people; need not be unique.
    pub name: Option<String>,
    /// True to keep the memory too, false for the files alone; `None` for what the provider keeps.
    pub memory: Option<bool>,
}

/// Purpose of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A caller asked for it.
    Kept,
    /// It is for copies of a sandbox, and goes when they are made.
    Copies,
    /// It is the files of a template.
    Template,
}

impl Control {
    /// Takes a snapshot of a sandbox, which goes on, or stays paused. Goes on if the caller goes away.
    ///
    /// # Errors
    /// [`Error::NotSupported`] where the provider keeps none, [`Error::LimitReached`] at a bound on
    /// snapshots, [`Error::Conflict`] while the sandbox is made or removed.
    pub async fn take_snapshot(self: &Arc<Self>, id: &str, request: NewSnapshotRequest) -> Result<Snapshot> {
        check_name(request.name.as_deref())?;
        let (control, id) = (Arc::clone(self), id.to_owned());
        let take = self.tasks.spawn(async move {
            let snapshot = SnapshotId::from_entropy(rand::random());
            let _in_hand = control.snapshotting.in_progress.begin(&snapshot);
            let kept = control.keep_state(&id, snapshot, request, Purpose::Kept, || true).await;
            let row = kept.map_err(|error| control.publish_if_limited("snapshot", None, error))?;
            let data = json!({"snapshot_id": row.id.as_str(), "provider": row.provider, "size_bytes": row.size_bytes});
            control.publish(EventType::SnapshotCreated, Some(&row.sandbox), data);
            Ok(row)
        });
        take.await.unwrap_or_else(|_| Err(Unavailable::ShuttingDown.into()))
    }

    /// Takes a snapshot whose id is in hand, if it is wanted still when it has its turn. One for copies stays in
    /// state `creating`, so that the reconciler removes what a crash leaves of it.
    pub(super) async fn keep_state(
        &self,
        id: &str,
        snapshot: SnapshotId,
        request: NewSnapshotRequest,
        purpose: Purpose,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Snapshot> {
        let Some(_queued) = self.snapshotting.in_progress.queue() else {
            return Err(Unavailable::SnapshotQueueFull.into());
        };
        let sandbox = self.pausable(id).await?;
        let runtime = self.snapshot_runtime(&sandbox).await?;
        let has_memory = snapshots_of(runtime.as_ref())?.has_memory();
        if request.memory.is_some_and(|memory| memory != has_memory) {
            let kept = if has_memory { "memory and files" } else { "files without memory" };
            return Err(Error::NotSupported(format!(
                "the provider `{}` saves {kept} of a sandbox; leave out `memory`",
                sandbox.provider
            )));
        }
        // The sandbox is neither paused nor resumed while its snapshot is taken. The lock comes before the
        // permit, because snapshots of one sandbox would else take all permits.
        let _lock = self.pauses.turns.take(&sandbox.id).await;
        let _permit = self.snapshotting.in_progress.place().await;
        let started = Instant::now();
        if !is_wanted() {
            return Err(Conflict::CallerGone.into());
        }
        let sandbox = self.pausable(id).await?;
        self.check_held(snapshots_of(runtime.as_ref())?, &sandbox).await?;
        let _room = self.keep_room(runtime.as_ref(), &sandbox, true, has_memory).await?;
        let row = Snapshot {
            id: snapshot,
            name: request.name,
            owner: sandbox.owner.clone(),
            sandbox: sandbox.id.clone(),
            provider: sandbox.provider.clone(),
            image: sandbox.image.clone(),
            resources: sandbox.resources,
            state: SnapshotState::Creating,
            is_temporary: purpose == Purpose::Copies,
            is_of_template: purpose == Purpose::Template,
            has_memory: false,
            size_bytes: 0,
            created_at: self.now(),
        };
        match self.store.insert_snapshot(&row, self.snapshot_bounds().await?).await? {
            NewSnapshot::Done => {}
            NewSnapshot::TooMany => return Err(self.too_many_snapshots()),
            NewSnapshot::TooManyOfOwner => {
                let max = self.policy.snapshots.per_owner;
                return Err(Limit::TooMany { objects: Counted::SnapshotsOfOwner, max }.into());
            }
            NewSnapshot::TooLarge => return Err(self.snapshots_too_large()),
        }
        let kept = self.take_and_record(snapshots_of(runtime.as_ref())?, &sandbox, row.clone()).await;
        self.record(Operation::Snapshot, &sandbox.provider, kept.is_ok(), started);
        if kept.is_err() {
            self.discard_snapshot(&row.id).await;
        }
        kept
    }

    async fn take_and_record(&self, snapshots: &dyn Snapshots, sandbox: &Sandbox, row: Snapshot) -> Result<Snapshot> {
        let taken = within(SNAPSHOT_WAIT, snapshots.take(&sandbox.id, &row.id)).await;
        if snapshots.has_memory()
            && let Err(error) = self.serve_egress(&sandbox.id, sandbox.owner.as_ref()).await
        {
            tracing::debug!(id = %sandbox.id, error = %Chain(&error), "cannot serve the connections of a box; retrying \
                later");
        }
        let taken = taken.map_err(|error| {
            if matches!(error, providers::Error::Gone) {
                self.guest_error(sandbox, error)
            } else {
                runtime_error(sandbox, error)
            }
        })?;
        let bounds = self.snapshot_bounds().await?;
        let stored = self.store.complete_snapshot(&row.id, taken.size_bytes, taken.has_memory, bounds).await?;
        stored.ok_or_else(|| self.snapshots_too_large())
    }

    /// Returns the bounds on snapshots, with what sandboxes alone keep of those that were removed.
    async fn snapshot_bounds(&self) -> Result<SnapshotBounds> {
        let mut bounds = self.policy.snapshots;
        if bounds.bytes == 0 {
            return Ok(bounds);
        }
        for entry in self.registry.entries() {
            let Some(snapshots) = entry.provider.snapshots() else { continue };
            match within(LIST_WAIT, snapshots.left_bytes()).await {
                Ok(left) => bounds.left_bytes = bounds.left_bytes.saturating_add(left),
                // An Engine that is away keeps nobody from snapshots of another provider.
                Err(error) => {
                    let provider = entry.provider.name();
                    tracing::warn!(provider, error = %Chain(&error), "cannot measure snapshots held by sandboxes");
                }
            }
        }
        Ok(bounds)
    }

    /// Checks that a sandbox which snapshots were removed under holds no more of them than its own disk may:
    /// else sandboxes made from each other would hold ever more.
    async fn check_held(&self, snapshots: &dyn Snapshots, sandbox: &Sandbox) -> Result<()> {
        let bound_mb = u64::from(sandbox.resources.disk_mb);
        if bound_mb == 0 {
            return Ok(());
        }
        let held = within(LIST_WAIT, snapshots.held_bytes(&sandbox.id)).await;
        let held_mb = held.map_err(|error| runtime_error(sandbox, error))? >> 20;
        if held_mb <= bound_mb {
            return Ok(());
        }
        Err(Limit::RemovedSnapshots { held_mb, max_mb: bound_mb }.into())
    }

    fn too_many_snapshots(&self) -> Error {
        Limit::TooMany { objects: Counted::Snapshots, max: self.policy.snapshots.count }.into()
    }

    fn snapshots_too_large(&self) -> Error {
        Limit::SnapshotsTooLarge { max_mb: self.policy.snapshots.bytes >> 20 }.into()
    }

    /// Returns the runtime of a sandbox, if it is here and keeps snapshots.
    pub(super) async fn snapshot_runtime(&self, sandbox: &Sandbox) -> Result<Arc<dyn Provider>> {
        self.check_not_shared()?;
        if let BoxHost::Worker(worker) = self.host_of(sandbox) {
            return Err(Error::NotSupported(format!(
                "sandbox `{}` is on the worker `{worker}`; only sandboxes of this server have snapshots",
                sandbox.id
            )));
        }
        let runtime = self.runtime_of(sandbox).await?;
        snapshots_of(runtime.as_ref())?;
        Ok(runtime)
    }

    /// Checks that sandboxes have boxes of their own.
    pub(super) fn check_not_shared(&self) -> Result<()> {
        if self.separates_users() {
            return Err(Error::NotSupported(
                "users share boxes here (`pool.enabled`), and a shared box cannot have snapshots".to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns ready snapshots that match, the newest first, those after `after`, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn snapshots(
        &self,
        filter: &SnapshotFilter,
        after: Option<&SnapshotCursor>,
        limit: u32,
    ) -> Result<Vec<Snapshot>> {
        if self.separates_users() {
            return Ok(Vec::new());
        }
        Ok(self.store.snapshots(filter, after, limit).await?)
    }

    /// Returns a snapshot that is ready, if it is of `viewer`; any for `None`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this id.
    pub async fn snapshot(&self, id: &str, viewer: Option<&OwnerId>) -> Result<Snapshot> {
        self.check_not_shared()?;
        let missing = || Error::NotFound(Resource::Snapshot, id.to_owned());
        let parsed = SnapshotId::parse(id).map_err(|_| missing())?;
        let row = self.store.snapshot(&parsed).await?;
        let is_seen = |row: &Snapshot| viewer.is_none_or(|viewer| row.owner.as_ref() == Some(viewer));
        row.filter(|row| row.state == SnapshotState::Ready && is_seen(row)).ok_or_else(missing)
    }

    /// Removes a snapshot, if it is of `viewer`; any for `None`. Sandboxes that were made of it go on. Goes on if the
    /// caller goes away.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this id, [`Error::Conflict`] for the files of a template, and the
    /// provider's error if the removal failed; it is then retried.
    pub async fn delete_snapshot(self: &Arc<Self>, id: &str, viewer: Option<&OwnerId>) -> Result<()> {
        let row = self.snapshot(id, viewer).await?;
        if row.is_of_template {
            return Err(Conflict::OfTemplate { snapshot: row.id }.into());
        }
        let control = Arc::clone(self);
        let removal = self.tasks.spawn(async move {
            let started = Instant::now();
            let in_hand = control.snapshotting.in_progress.begin(&row.id);
            let removed = control.remove_snapshot(&row.id, &in_hand).await;
            control.record(Operation::SnapshotDelete, &row.provider, removed.is_ok(), started);
            removed
        });
        removal.await.unwrap_or_else(|_| Err(Unavailable::ShuttingDown.into()))
    }

    /// Removes a snapshot that is in hand, and then its row.
    async fn remove_snapshot(&self, id: &SnapshotId, _in_hand: &SnapshotInHand) -> Result<()> {
        let Some(row) = self.store.snapshot(id).await? else { return Ok(()) };
        // Before the row says so: one that cannot be removed stays in the lists.
        let entry = self.registry.get(&row.provider).ok_or_else(|| Unavailable::NotEnabled {
            provider: row.provider.clone(),
            resource: Resource::Snapshot,
            id: id.to_string(),
        })?;
        let remove = async || {
            let Some(snapshots) = entry.provider.snapshots() else { return Ok(()) };
            let removed = within(SNAPSHOT_WAIT, snapshots.remove(id)).await;
            removed.map_err(|error| provider_error(&row.provider, error))
        };
        let begun = match self.store.begin_snapshot_removal(id).await.map_err(Error::from) {
            // What it takes of the full disk is room for its row.
            Err(Error::Full(_)) => {
                remove().await?;
                self.await_freed(&row.provider).await;
                self.store.begin_snapshot_removal(id).await?
            }
            begun => begun?,
        };
        let Some(row) = begun else { return Ok(()) };
        remove().await?;
        self.remove_image_of_snapshot(id).await?;
        if self.store.delete_snapshot(id).await? && !row.is_temporary {
            let data = json!({"snapshot_id": id.as_str(), "provider": row.provider});
            self.publish(EventType::SnapshotDeleted, Some(&row.sandbox), data);
        }
        Ok(())
    }

    /// Removes a snapshot that is not wanted. Returns whether it is gone; if not, the reconciler removes
    /// it.
    pub(super) async fn discard_snapshot(&self, id: &SnapshotId) -> bool {
        let in_hand = self.snapshotting.in_progress.begin(id);
        let removed = self.remove_snapshot(id, &in_hand).await;
        if let Err(error) = &removed {
            tracing::warn!(%id, error = %Chain(error), "cannot remove a snapshot; retrying later");
        }
        removed.is_ok()
    }

    fn publish_snapshot_action(&self, action: &str, provider: &str, id: &SnapshotId) {
        self.publish_action(action, None, json!({"provider": provider, "snapshot_id": id.as_str()}));
    }

    /// Finishes the snapshots of a provider that a crash left, removes those without a row, and the
    /// rows of those that are lost.
    pub(super) async fn reconcile_snapshots(&self, provider: &dyn Provider) -> Result<()> {
        let Some(snapshots) = provider.snapshots() else { return Ok(()) };
        let name = provider.name();
        self.remove_images_of_snapshots().await?;
        for row in self.store.unfinished_snapshots().await? {
            if row.provider == name && !self.snapshotting.in_progress.holds(&row.id) {
                // It may have been finished since the row was read.
                let state = self.store.snapshot(&row.id).await?.map(|row| row.state);
                let is_left = matches!(state, Some(SnapshotState::Creating | SnapshotState::Destroying));
                if is_left && self.discard_snapshot(&row.id).await {
                    self.publish_snapshot_action("snapshot_removed", name, &row.id);
                }
            }
        }
        // Rows are read first: a snapshot that is ready by then is listed.
        let ready = self.store.snapshots_of(name).await?;
        let listed = listed_by(snapshots, name).await?;
        for id in ready.iter().filter(|id| !listed.contains(id)) {
            let state = self.store.snapshot(id).await?.map(|row| row.state);
            if self.snapshotting.in_progress.holds(id) || state != Some(SnapshotState::Ready) {
                continue;
            }
            tracing::warn!(%id, provider = name, "a snapshot is lost");
            if self.discard_snapshot(id).await {
                self.publish_snapshot_action("snapshot_lost", name, id);
            }
        }
        let mut orphans = Vec::new();
        for id in listed {
            if !self.snapshotting.in_progress.holds(&id) && self.store.snapshot(&id).await?.is_none() {
                orphans.push(id);
            }
        }
        if orphans.is_empty() {
            return Ok(());
        }
        // A request may have removed one since the first look.
        let still = listed_by(snapshots, name).await?;
        for id in orphans.iter().filter(|id| still.contains(id)) {
            tracing::warn!(%id, provider = name, "removing a snapshot without a row");
            let removed = within(SNAPSHOT_WAIT, snapshots.remove(id)).await;
            removed.map_err(|error| provider_error(name, error))?;
            self.publish_snapshot_action("snapshot_removed", name, id);
        }
        Ok(())
    }
}

/// Returns the snapshots that a provider holds.
async fn listed_by(snapshots: &dyn Snapshots, name: &str) -> Result<HashSet<SnapshotId>> {
    let listed = within(LIST_WAIT, snapshots.list()).await.map_err(|error| provider_error(name, error))?;
    Ok(listed.into_iter().collect())
}

/// Returns the snapshots of a runtime that keeps some.
pub(super) fn snapshots_of(runtime: &dyn Provider) -> Result<&dyn Snapshots> {
    runtime.snapshots().ok_or_else(|| {
        Error::NotSupported(format!(
            "the provider `{}` cannot take snapshots here; GET /api/v1/providers shows which providers have the \
             capability `snapshots`",
            runtime.name()
        ))
    })
}

fn check_name(name: Option<&str>) -> Result<()> {
    let fits = name.is_none_or(|name| {
        (1..=NAME_CHARS_MAX).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    });
    if fits { Ok(()) } else { Err(Error::InvalidName { resource: Resource::Snapshot, chars_max: NAME_CHARS_MAX }) }
}

#[cfg(test)]
mod test {
    use domain::SandboxId;
    use tokio_util::task::TaskTracker;

    use self::in_progress::QUEUED_MAX;
    use super::*;
    use crate::control::SpawnRequest;
    use crate::test::harness::{TestApp, TestProvider};

    #[tokio::test]
    async fn requests_for_one_sandbox_leave_places_to_others_and_are_refused_where_many_wait() {
        const SOON: Duration = Duration::from_secs(30);
        let provider = TestProvider::new("test");
        provider.keep_memory();
        let app = TestApp::builder().provider(provider).start().await;
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id);
        }
        // As a snapshot that takes long.
        let _turn = app.control.pauses.turns.take(&ids[0]).await;
        let waiting = TaskTracker::new();
        let take = |id: &SandboxId| {
            let (control, id) = (Arc::clone(&app.control), id.clone());
            async move { control.take_snapshot(id.as_str(), NewSnapshotRequest::default()).await }
        };
        let in_hand = async |count: usize| {
            while app.control.snapshotting.in_progress.queued() < count {
                tokio::task::yield_now().await;
            }
        };
        (0..5).for_each(|_| drop(waiting.spawn(take(&ids[0]))));
        in_hand(5).await;
        tokio::time::timeout(SOON, take(&ids[1])).await.expect("it does not wait").unwrap();
        (5..QUEUED_MAX).for_each(|_| drop(waiting.spawn(take(&ids[0]))));
        in_hand(QUEUED_MAX).await;
        let refused = tokio::time::timeout(SOON, take(&ids[1])).await.expect("it does not wait");
        assert!(matches!(&refused, Err(Error::Unavailable(Unavailable::SnapshotQueueFull))), "{refused:?}");
    }

    #[tokio::test]
    async fn a_snapshot_whose_provider_is_not_enabled_stays_in_the_list() {
        let provider = TestProvider::new("test");
        provider.keep_memory();
        let app = TestApp::builder().provider(provider).start().await;
        let id = app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
        let kept = app.control.take_snapshot(id.as_str(), NewSnapshotRequest::default()).await.unwrap().id;
        let other = TestApp::builder().provider(TestProvider::new("other"));
        let later = other.store(Arc::clone(&app.control.store)).start().await;
        let refused = later.control.delete_snapshot(kept.as_str(), None).await;
        assert!(matches!(&refused, Err(Error::Unavailable(Unavailable::NotEnabled { .. }))), "{refused:?}");
        later.control.snapshot(kept.as_str(), None).await.unwrap();
        app.control.delete_snapshot(kept.as_str(), None).await.unwrap();
    }

    #[test]
    fn names_are_short_and_plain() {
        for name in [None, Some("a"), Some("before-numpy_1.2"), Some(&*"x".repeat(64))] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
        for name in ["", "a b", "a/b", "ä", "a\0", &"x".repeat(65)] {
            assert!(check_name(Some(name)).is_err(), "{name}");
        }
    }
}
