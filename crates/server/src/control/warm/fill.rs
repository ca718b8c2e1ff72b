//! Making, taking and removing of the boxes that are kept ready.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::SandboxId;
use futures_util::{StreamExt, stream};
use providers::{Chain, Phase, Provider, Spec};

use super::pool::{Kind, Ready, WarmBox, WarmCheck, WarmFigures};
use super::snapshots::WarmSnapshot;
use crate::control::error::{Error, Result};
use crate::control::guest::access::runtime_error;
use crate::control::policy::{ORPHAN_GRACE, Policy};
use crate::control::service::Control;
use crate::control::spawn::{Claim, Plan, SpawnRequest};
use crate::control::unavailable::{Unavailable, Unhealthy};
use crate::control::workers::inventory::{REMOVAL_WAIT, within};
use store::Sandbox;

/// Deadline of a box that is to be taken: one that does not answer by then is replaced.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Longest time that a box of the pool waits to be made while spawns are under way.
const YIELD_MAX: Duration = Duration::from_secs(5);
/// Deadline for the removal of all boxes when the server stops.
const EMPTY_MAX: Duration = Duration::from_secs(10);
/// Maximum number of concurrent removals when the server stops.
const AT_ONCE: usize = 16;

impl Plan {
    /// Returns the kind of a box that could be taken for this spawn; `None` if it needs one of its own.
    fn kind(&self, policy: &Policy) -> Option<Kind> {
        let sandbox = &self.new.sandbox;
        let is_service = policy.is_service(&sandbox.provider);
        let is_as_its_image = self.spec.snapshot.is_none();
        (self.new.placement.here && self.new.pool.is_none() && is_as_its_image).then(|| Kind {
            provider: sandbox.provider.clone(),
            image: sandbox.image.clone(),
            resources: sandbox.resources,
            entrypoint: self.spec.entrypoint,
            egress: if is_service { self.spec.egress.clone() } else { Vec::new() },
            prepare: self.prepare.clone(),
        })
    }
}

/// Origin of a box of the pool: the image, or a snapshot.
enum Origin {
    /// The image. After so many of its commands a snapshot is taken, unless `None`.
    Image { keep_after: Option<usize> },
    /// The snapshot of its entry.
    Snapshot(Arc<WarmSnapshot>),
}

/// Box that is being made. Dropped before it is ready, it is removed.
struct Making {
    control: Arc<Control>,
    id: SandboxId,
    is_ready: bool,
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.is_ready {
            self.control.discard_warm(self.id.clone());
        }
    }
}

impl Control {
    /// Takes a box of the warm pool that a spawn can have, if one is ready, and finds the snapshot of which one
    /// can be made.
    pub(in crate::control) fn take_warm(&self, plan: &Plan) -> (Option<WarmBox>, Option<Arc<WarmSnapshot>>) {
        if self.warm.pool.len() == 0 {
            return (None, None);
        }
        match plan.kind(&self.policy) {
            Some(kind) => (self.warm.pool.take(&kind), self.warm.snapshots.of_kind(&kind)),
            None => (None, None),
        }
    }

    /// Returns how a box of the pool is found to be there, which also sets its deadline.
    pub(in crate::control) fn check_warm(&self, warm: &WarmBox, lifetime: Duration) -> WarmCheck {
        let Ready { id, guest, is_paused, is_untouched, ends, .. } = warm.ready().clone();
        let provider = self.warm.pool.provider(&id);
        // What runs in it may keep the agent from its work. A deadline that is earlier than the sandbox's
        // must not be the last one should the server crash.
        let may_look = is_untouched && !is_paused && ends >= Instant::now() + lifetime;
        if may_look && provider.as_ref().is_some_and(|provider| provider.runs(&id).is_some()) {
            return WarmCheck::Look(guest);
        }
        // It is no task of its own, since to wake another processor takes longer than the box's answer.
        let answer = async move {
            if is_paused && let Some(pauses) = provider.as_deref().and_then(Provider::pauses) {
                pauses.resume(&id).await?;
            }
            guest.set_deadline(lifetime).await
        };
        WarmCheck::Ask(Box::pin(within(ANSWER_WAIT, answer)))
    }

    /// Returns the provider of a box that a sandbox was given, once the box was found to be there; `None` if
    /// there is no such box, or none any more.
    pub(in crate::control) async fn claimed(
        self: &Arc<Self>,
        sandbox: &Sandbox,
        claim: Option<Claim>,
        phases: &mut Vec<Phase>,
    ) -> Result<Option<Arc<dyn Provider>>> {
        let Some(Claim { entry, check }) = claim else { return Ok(None) };
        let waited = Instant::now();
        let provider = self.runtime_of(sandbox).await?;
        let found = match check {
            WarmCheck::Ask(answer) => answer.await,
            WarmCheck::Look(guest) if provider.runs(&sandbox.id) == Some(true) => {
                self.set_deadline_later(&sandbox.id, guest);
                Ok(())
            }
            WarmCheck::Look(_) => Err(providers::Error::Gone),
        };
        phases.push(Phase { name: "warm_box", took: waited.elapsed() });
        match found {
            Ok(()) => Ok(Some(provider)),
            Err(error) => self.clear_dead_warm(sandbox, entry, &error).await.map(|()| None),
        }
    }

    /// Removes what is left of a box of the pool that was dead when a sandbox got it.
    pub(in crate::control) async fn clear_dead_warm(
        &self,
        sandbox: &Sandbox,
        entry: usize,
        error: &providers::Error,
    ) -> Result<()> {
        let id = &sandbox.id;
        tracing::info!(%id, error = %Chain(error), "a warm box does not answer; making another");
        self.warm.pool.died(entry);
        self.stop_box(sandbox).await
    }

    /// Returns the number of entries of the warm pool.
    pub(crate) fn warm_entries(&self) -> usize {
        self.warm.pool.len()
    }

    /// Waits until a box of an entry was taken.
    pub(crate) async fn warm_wanted(&self, entry: usize) {
        self.warm.pool.wanted(entry).await;
    }

    /// Returns the figures of the warm pool, by entry.
    pub fn warm_figures(&self) -> Vec<WarmFigures> {
        self.warm.pool.figures()
    }

    /// Replaces the boxes of an entry that are outdated, and makes those that it lacks, one after the
    /// other.
    ///
    /// # Errors
    /// The reason why none can be made now; the caller tries again later.
    pub(crate) async fn keep_warm(self: &Arc<Self>, entry: usize) -> Result<()> {
        let kept = self.fill(entry).await;
        let error = kept.as_ref().err().map(|error| Chain(error).to_string());
        let name = &self.warm.pool.wish(entry).name;
        if self.warm.pool.note(entry, error.clone()) {
            match error {
                Some(error) => tracing::warn!(entry = name, error, "cannot keep boxes ready; trying again"),
                None => tracing::info!(entry = name, "boxes are ready"),
            }
        }
        kept
    }

    async fn fill(self: &Arc<Self>, entry: usize) -> Result<()> {
        loop {
            let (plan, kind, provider) = match self.plan_warm(entry).await {
                Ok(planned) => planned,
                Err(error) => {
                    // What is not used is the first to go where space is short.
                    if matches!(error, Error::Full(_)) {
                        self.discard_all_warm(self.warm.pool.clear(entry));
                        self.discard_warm_snapshot(entry);
                    }
                    return Err(error);
                }
            };
            let digest = match provider.images() {
                Some(images) => images.digest(&kind.image).await,
                None => None,
            };
            self.discard_all_warm(self.warm.pool.renew(entry, kind.clone(), digest.clone(), Instant::now()));
            let snapshot_after = self.renew_warm_snapshot(entry, &kind, digest.as_deref(), provider.as_ref())?;
            let origin = match self.warm.snapshots.of_entry(entry) {
                Some(snapshot) if self.warm.pool.lacks(entry) => Origin::Snapshot(snapshot),
                _ if self.warm.pool.lacks(entry) || snapshot_after.is_some() => {
                    Origin::Image { keep_after: snapshot_after }
                }
                _ => return Ok(()),
            };
            let _ = tokio::time::timeout(YIELD_MAX, self.spawns_rest(entry)).await;
            self.make_warm(entry, plan, &kind, digest, provider, origin).await?;
        }
    }

    /// Waits until no spawn is under way or likely to follow at once.
    async fn spawns_rest(&self, entry: usize) {
        loop {
            self.spawns.ended().await;
            match self.warm.pool.rest(entry, Instant::now()) {
                Some(rest) => tokio::time::sleep(rest).await,
                None => return,
            }
        }
    }

    /// Plans a box of an entry as a spawn without an owner.
    async fn plan_warm(&self, entry: usize) -> Result<(Plan, Kind, Arc<dyn Provider>)> {
        let wish = self.warm.pool.wish(entry);
        let (options, template) = (wish.options.clone(), wish.template.clone());
        let plan = self.plan(SpawnRequest { options, template, ..SpawnRequest::default() }).await?;
        let name = &plan.new.sandbox.provider;
        let planned = self.registry.get(name).zip(plan.kind(&self.policy));
        let Some((here, kind)) = planned else {
            let unhealthy = Unhealthy::MakesWarmBoxes;
            return Err(Unavailable::ProviderUnhealthy { provider: name.clone(), unhealthy }.into());
        };
        Ok((plan, kind, Arc::clone(&here.provider)))
    }

    async fn make_warm(
        self: &Arc<Self>,
        entry: usize,
        plan: Plan,
        kind: &Kind,
        digest: Option<String>,
        provider: Arc<dyn Provider>,
        origin: Origin,
    ) -> Result<()> {
        let Plan { new, spec, ttl, .. } = plan;
        let sandbox = new.sandbox;
        let id = sandbox.id.clone();
        self.warm.pool.enroll(&id, Arc::clone(&provider));
        let mut making = Making { control: Arc::clone(self), id: id.clone(), is_ready: false };
        // However old it is, a sandbox that lives as long as most ends before it.
        let lifetime = self.warm.pool.wish(entry).max_age + ttl + ORPHAN_GRACE;
        let spec = Spec { lifetime, ..spec };
        let failed = |error| runtime_error(&sandbox, error);
        match &origin {
            Origin::Image { .. } => provider.start(&id, &spec).await.map(drop).map_err(failed)?,
            Origin::Snapshot(snapshot) => {
                if self.start_of_warm_snapshot(snapshot, &sandbox, &spec).await.is_none() {
                    return Ok(());
                }
            }
        }
        let mut guest = provider.guest(&id).await.map_err(failed)?;
        // What a claim will ask: the first answer of an agent takes several times as long as the next.
        let ends = Instant::now() + lifetime;
        guest.set_deadline(lifetime).await.map_err(failed)?;
        let is_untouched = kind.prepare.is_empty() && !kind.entrypoint;
        let (mut kept, mut is_paused) = (Ok(()), false);
        if !kind.prepare.is_empty() {
            // Secrets are those of an owner, whom it has not yet.
            let egress = new.egress.without_secrets();
            let commands = match &origin {
                Origin::Snapshot(snapshot) => snapshot.left(&kind.prepare),
                Origin::Image { keep_after: None } => &kind.prepare,
                Origin::Image { keep_after: Some(count) } => {
                    let (before, after) = kind.prepare.split_at(*count);
                    self.finish_box(&sandbox, &egress, before, provider.as_ref()).await?;
                    kept = self.take_warm_snapshot(entry, kind, digest, &sandbox, *count, &provider).await;
                    // One with the memory ends the connections to its box.
                    guest = provider.guest(&id).await.map_err(failed)?;
                    after
                }
            };
            self.finish_box(&sandbox, &egress, commands, provider.as_ref()).await?;
            if let Some(pauses) = provider.pauses() {
                // What runs in it takes no processor time until it is taken.
                pauses.pause(&id).await.map_err(failed)?;
                is_paused = true;
            }
        }
        let since = Instant::now();
        let made = match &origin {
            Origin::Image { .. } => since,
            Origin::Snapshot(snapshot) => snapshot.since,
        };
        let ready = Ready { id, guest, since, made, is_paused, is_untouched, ends };
        // One that was made for its snapshot may be one too many.
        making.is_ready = self.warm.pool.lacks(entry) && self.warm.pool.put(entry, kind, ready);
        kept
    }

    /// Removes a box of the warm pool that no sandbox has. If that fails, the comparison of the
    /// provider's boxes with the rows does.
    fn discard_warm(self: &Arc<Self>, id: SandboxId) {
        let control = Arc::clone(self);
        self.tasks.spawn(async move { control.remove_warm(&id).await });
    }

    fn discard_all_warm(self: &Arc<Self>, ids: Vec<SandboxId>) {
        ids.into_iter().for_each(|id| self.discard_warm(id));
    }

    async fn remove_warm(&self, id: &SandboxId) {
        let Some(provider) = self.warm.pool.provider(id) else { return };
        if let Err(error) = within(REMOVAL_WAIT, provider.stop(id)).await {
            tracing::warn!(%id, error = %Chain(&error), "cannot remove a box of the warm pool; retrying later");
        }
        self.warm.pool.dismiss(id);
    }

    /// Replaces the boxes of the warm pool that were ready at `seen` and that their provider has lost.
    pub(in crate::control) fn replace_lost_warm(
        self: &Arc<Self>,
        provider: &str,
        alive: &HashSet<&SandboxId>,
        seen: Instant,
    ) {
        let lost = self.warm.pool.lost(provider, alive, seen);
        if !lost.is_empty() {
            tracing::info!(provider, boxes = lost.len(), "boxes of the warm pool have stopped; replacing them");
        }
        self.discard_all_warm(lost);
    }

    /// Removes all boxes and snapshots of the warm pool: the next start cannot know them. What is left after a bounded
    /// time is removed by the next start as boxes without a row.
    pub async fn empty_warm_pool(&self) {
        let removals = stream::iter(self.warm.pool.members());
        let boxes = removals.for_each_concurrent(AT_ONCE, |id| async move { self.remove_warm(&id).await });
        let all = async { tokio::join!(boxes, self.remove_warm_snapshots()) };
        if tokio::time::timeout(EMPTY_MAX, all).await.is_err() {
            tracing::warn!("some boxes of the warm pool are left for the next start");
        }
    }
}
