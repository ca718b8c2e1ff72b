//! Forks: copies of a sandbox, made of a snapshot that is removed afterwards.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use domain::{Asker, Metadata, SandboxId, SnapshotId, SpawnOptions, StopReason};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use providers::Chain;
use tokio::sync::oneshot;

use super::spawn_options::of_snapshot;
use super::{NewSnapshotRequest, Purpose};
use crate::control::error::{Error, Result};
use crate::control::resource::Resource;
use crate::control::service::Control;
use crate::control::spawn::SpawnRequest;
use crate::control::unavailable::Unavailable;
use crate::operation_metrics::Operation;
use store::Sandbox;

/// Maximum number of copies that are made, or removed, at once.
const AT_ONCE: usize = 16;

/// A request for copies of a sandbox.
#[derive(Debug, Clone, Default)]
pub struct ForkRequest {
    /// Number of copies.
    pub count: usize,
    /// Lifetime of the copies.
    pub ttl: Option<Duration>,
    /// Labels of the copies, in addition to the sandbox's; a value here replaces the sandbox's.
    pub metadata: Metadata,
    /// Caller, whose share of bounded places is limited.
    pub asker: Option<Asker>,
}

impl Control {
    /// Maximum number of copies of one request.
    pub const FORKS_MAX: usize = 100;

    /// Makes copies of a sandbox: all that were asked for, or none. If the caller goes away, they are
    /// removed again.
    ///
    /// # Errors
    /// Those of [`Control::take_snapshot`] and of [`Control::spawn`].
    pub async fn fork(self: &Arc<Self>, id: &str, request: ForkRequest) -> Result<Vec<Sandbox>> {
        if !(1..=Self::FORKS_MAX).contains(&request.count) {
            return Err(Error::Invalid(format!("`count` must be 1 to {}", Self::FORKS_MAX)));
        }
        let (control, id, started) = (Arc::clone(self), id.to_owned(), Instant::now());
        let (mut answer, answered) = oneshot::channel();
        self.tasks.spawn(async move {
            let snapshot = SnapshotId::from_entropy(rand::random());
            let in_hand = control.snapshotting.in_progress.begin(&snapshot);
            let made = Mutex::new(Vec::new());
            let count = request.count;
            // What the provider writes keeps its room and its turn, although the caller may have gone away.
            let kept = control.keep_for_copies(&id, &snapshot, request, || !answer.is_closed()).await;
            let forked = match kept {
                Ok(spawn) => tokio::select! {
                    copies = control.spawn_all(&spawn, count, &made) => Some(copies),
                    () = answer.closed() => None,
                },
                Err(error) => Some(Err(error)),
            };
            control.discard_snapshot(&snapshot).await;
            drop(in_hand);
            let is_whole = matches!(forked, Some(Ok(_)));
            if !is_whole {
                control.remove_copies(&made).await;
            }
            if let Some(forked) = forked {
                // The caller may also go away while the answer is under way.
                let (claim, claimed) = oneshot::channel();
                let _ = answer.send((forked, claim));
                if claimed.await.is_err() && is_whole {
                    control.remove_copies(&made).await;
                }
            }
        });
        let (forked, claim): (Result<Vec<Sandbox>>, oneshot::Sender<()>) =
            answered.await.map_err(|_| Unavailable::ShuttingDown)?;
        let _ = claim.send(());
        if let Ok(copies) = &forked
            && let Some(copy) = copies.first()
        {
            self.record(Operation::Fork, &copy.provider, true, started);
        }
        forked
    }

    /// Takes a snapshot, if it is wanted still when it has its turn, and returns the request for a copy.
    async fn keep_for_copies(
        &self,
        id: &str,
        snapshot: &SnapshotId,
        request: ForkRequest,
        is_wanted: impl Fn() -> bool,
    ) -> Result<SpawnRequest> {
        let origin = self.living(id).await?;
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let egress = self.store.egress(&origin.id).await?.ok_or_else(missing)?;
        let snapshot =
            self.keep_state(id, snapshot.clone(), NewSnapshotRequest::default(), Purpose::Copies, is_wanted).await?;
        let mut metadata = origin.metadata.clone();
        metadata.extend(request.metadata);
        let options = SpawnOptions {
            ttl: request.ttl,
            metadata,
            egress: Some(egress.own),
            auto_pause: origin.auto_pause,
            ..SpawnOptions::default()
        };
        let (owner, asker) = (origin.owner.clone(), request.asker);
        let terms = match origin.terms.as_deref().cloned() {
            Some(mut terms) => {
                terms.defaults.env = self.store.env(&origin.id).await?;
                Some(terms)
            }
            None => None,
        };
        let spawn =
            SpawnRequest { options, owner, asker, template_egress: egress.template, terms, ..SpawnRequest::default() };
        Ok(of_snapshot(spawn, snapshot))
    }

    /// Spawns until all are made or one fails, and then waits for those that have begun. Their ids are added to
    /// `made`.
    async fn spawn_all(
        self: &Arc<Self>,
        request: &SpawnRequest,
        count: usize,
        made: &Mutex<Vec<SandboxId>>,
    ) -> Result<Vec<Sandbox>> {
        let (has_failed, mut failure) = (AtomicBool::new(false), None);
        let goes_on = |_: &usize| ready(!has_failed.load(Ordering::Relaxed));
        let spawns = stream::iter(0..count).take_while(goes_on).map(|_| self.spawn(request.clone()));
        let mut spawns = std::pin::pin!(spawns.buffer_unordered(AT_ONCE));
        let mut copies = Vec::with_capacity(count);
        while let Some(spawned) = spawns.next().await {
            match spawned {
                Ok(spawned) => {
                    made.lock().push(spawned.sandbox.id.clone());
                    copies.push(spawned.sandbox);
                }
                Err(error) => {
                    has_failed.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok(copies), Err)
    }

    async fn remove_copies(self: &Arc<Self>, made: &Mutex<Vec<SandboxId>>) {
        let made = std::mem::take(&mut *made.lock());
        let removals = stream::iter(made).map(|id| async move {
            if let Err(error) = self.destroy_because(&id, StopReason::Abandoned).await {
                tracing::warn!(%id, error = %Chain(&error), "cannot remove a copy; retrying later");
            }
        });
        removals.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }
}
