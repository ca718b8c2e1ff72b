//! Spawn: decide, store the row, start the box, store the outcome.

pub(super) mod admission;
pub(super) mod in_progress;
mod prepare;

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{
    Asker, Ceilings, EgressPolicy, OwnerId, PrepareCommand, Quota, Resources, SandboxEgress, SandboxId, Site,
    SizeOptions, SpawnOptions, State, StopReason, WorkerId,
};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use providers::{Chain, Phase, Provider, Spec, Started};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use self::in_progress::InProgress;
use self::prepare::prepare;
use super::conflict::Conflict;
use super::error::{Error, Result, above};
use super::guest::access::{no_answer, runtime_error};
use super::limit::Limit;
use super::pause::pauses_of;
use super::policy::ORPHAN_GRACE;
use super::resource::Resource;
use super::service::Control;
use super::templates::TEMPLATE_LABEL;
use super::unavailable::Unavailable;
use super::wait::{WAIT_MAX, WaitFor};
use super::warm::pool::{WarmAnswer, WarmBox};
use super::warm::snapshots::WarmSnapshot;
use super::workers::placement::{LOCAL_WORKER, Offer};
use crate::admission::{Granted, Refused};
use crate::events::EventType;
use crate::operation_metrics::Operation;
use store::clock;
use store::workers::PlacementFilter;
use store::{Applied, Change, IdempotencyKey, NewSandbox, Sandbox, Snapshot};

/// A spawn request.
#[derive(Debug, Clone, Default)]
pub struct SpawnRequest {
    /// Options of the sandbox; for those left out the template's count, else the server's defaults.
    pub options: SpawnOptions,
    /// Owner charged for the sandbox.
    pub owner: Option<OwnerId>,
    /// Name of the template.
    pub template: Option<String>,
    /// The caller's own key for this request.
    pub key: Option<IdempotencyKey>,
    /// Generation of the lease, if a control plane sends the request.
    pub generation: Option<u64>,
    /// Caller, whose share of bounded places is limited.
    pub asker: Option<Asker>,
    /// Policy of the template on connections, which the request's cannot widen.
    pub template_egress: Option<EgressPolicy>,
    /// Id of the snapshot that the box is made of.
    pub snapshot: Option<String>,
    /// The snapshot that the box is made of.
    pub source: Option<Source>,
}

/// A snapshot that a box is made of.
#[derive(Debug, Clone)]
pub enum Source {
    /// Snapshot for a box of the provider that keeps it.
    Kept(Snapshot),
    /// Snapshot for a box of another provider, which is made of an image of its files.
    Image(Snapshot),
}

/// A sandbox that was spawned.
#[derive(Debug, Clone)]
pub struct Spawned {
    pub sandbox: Sandbox,
    /// Start-up phases with their durations, in order.
    pub phases: Vec<Phase>,
}

/// Parts of a sandbox that was admitted and is to be made.
struct Order {
    egress: SandboxEgress,
    spec: Spec,
    placement: PlacementFilter,
    generation: Option<u64>,
    prepare: Vec<PrepareCommand>,
    /// Box of the warm pool that it was given.
    claim: Option<Claim>,
    /// Snapshot of the warm pool of which its box can be made.
    warm_snapshot: Option<Arc<WarmSnapshot>>,
}

/// A box of the warm pool that was given to a sandbox.
pub(super) struct Claim {
    /// Entry of the pool that the box was of.
    pub(super) entry: usize,
    /// Answer of the box to its deadline. An error if it has died.
    pub(super) answer: WarmAnswer,
}

/// A validated request, before admission.
pub(super) struct Plan {
    pub(super) new: NewSandbox,
    pub(super) spec: Spec,
    pub(super) ttl: Duration,
    /// Commands that run before the sandbox counts as running.
    pub(super) prepare: Vec<PrepareCommand>,
    generation: Option<u64>,
    /// Snapshot of which an image is made first.
    pub(super) imaged: Option<Snapshot>,
}

impl Control {
    /// Spawns a sandbox, or returns the one that an earlier request with the same key spawned.
    ///
    /// The box is started by a task of its own. If the caller goes away meanwhile, the sandbox
    /// is removed again, at any step.
    ///
    /// # Errors
    /// [`Error::LimitReached`] when a cap or the maximum lifetime forbids it, [`Error::Invalid`],
    /// [`Error::InvalidImage`] and [`Error::NotSupported`] for a request that no box can satisfy,
    /// [`Error::PrepareFailed`], [`Error::Unavailable`] without a healthy provider,
    /// [`Error::Conflict`] for a key used with another request.
    pub async fn spawn(self: &Arc<Self>, request: SpawnRequest) -> Result<Spawned> {
        let started = Instant::now();
        if let Some(found) = self.spawned_before(&request).await? {
            return Ok(found);
        }
        let repeated = request.key.is_some().then(|| request.clone());
        let plan = match self.plan(request).await {
            Ok(plan) => plan,
            Err(error) => return Err(self.publish_if_limited("spawn", None, error)),
        };
        let provider = plan.new.sandbox.provider.clone();
        let outcome = async {
            let (plan, phases) = self.with_image_of_snapshot(plan).await?;
            self.admit_and_make(plan, started, phases).await
        };
        let outcome = outcome.await;
        // Of two concurrent requests with the same key, one creates the sandbox.
        if let (Err(Error::Conflict(_)), Some(request)) = (&outcome, repeated)
            && let Some(found) = self.spawned_before(&request).await?
        {
            return Ok(found);
        }
        self.record(Operation::Spawn, &provider, outcome.is_ok(), started);
        outcome.map_err(|error| self.publish_if_limited("spawn", Some(&provider), error))
    }

    /// Publishes a resource-limit event if `error` is [`Error::LimitReached`], and returns
    /// `error`.
    pub(super) fn publish_if_limited(&self, operation: &str, provider: Option<&str>, error: Error) -> Error {
        if let Error::LimitReached(_) = &error {
            self.publish(EventType::ResourceLimit, None, json!({"operation": operation, "provider": provider}));
        }
        error
    }

    /// Returns the sandbox of the request's key, once it is made.
    async fn spawned_before(&self, request: &SpawnRequest) -> Result<Option<Spawned>> {
        let Some(key) = &request.key else { return Ok(None) };
        let Some((made_for, id)) = self.store.keyed(request.owner.as_ref(), &key.key, self.now()).await? else {
            return Ok(None);
        };
        if made_for != key.request {
            return Err(Conflict::KeyReused.into());
        }
        let gone = || Error::Conflict(Conflict::KeyEnded { sandbox: id.clone() });
        match self.wait(id.as_str(), WaitFor::Made, WAIT_MAX).await {
            Ok(sandbox) if sandbox.expires_at > self.now() => Ok(Some(Spawned { sandbox, phases: Vec::new() })),
            Ok(_) => Err(gone()),
            // A sandbox that failed or was abandoned has freed its key.
            Err(Error::Conflict(_) | Error::NotFound(..)) => {
                match self.store.keyed(request.owner.as_ref(), &key.key, self.now()).await? {
                    Some((_, still)) if still == id => Err(gone()),
                    _ => Ok(None),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Admits and makes a sandbox. `phases` are those since `started` that are over.
    async fn admit_and_make(self: &Arc<Self>, plan: Plan, started: Instant, mut phases: Vec<Phase>) -> Result<Spawned> {
        let (warm, warm_snapshot) = self.take_warm(&plan);
        let Plan { new, spec, ttl, prepare, generation, imaged: _ } = plan;
        let (placement, egress) = (new.placement.clone(), new.egress.clone());
        let (in_progress, granted, claim) = self.admit(new, ttl, warm, generation.is_some()).await?;
        // No await from here until the task owns the sandbox. If the caller goes away, either
        // the task or the admission removes it.
        let Granted { sandbox, stored } = granted;
        self.publish(EventType::SandboxCreated, Some(&sandbox.id), json!({"provider": sandbox.provider}));
        let before: Duration = phases.iter().map(|phase| phase.took).sum();
        phases.push(Phase { name: "admission", took: started.elapsed().saturating_sub(stored + before) });
        phases.push(Phase { name: "store", took: stored });
        let order = Order { egress, spec, placement, generation, prepare, claim, warm_snapshot };
        let (mut answer, answered) = oneshot::channel();
        let control = Arc::clone(self);
        self.tasks.spawn(async move {
            let id = sandbox.id.clone();
            let spawned = tokio::select! {
                spawned = control.make(sandbox, order, phases) => spawned,
                // A start may wait long for an image, which is useless once the caller has gone.
                () = answer.closed() => {
                    drop(in_progress);
                    return control.abandon(&id).await;
                }
            };
            drop(in_progress);
            let made = spawned.as_ref().ok().map(|spawned| spawned.sandbox.id.clone());
            // The caller may also go away while the answer is under way.
            let (claim, claimed) = oneshot::channel();
            let _ = answer.send((spawned, claim));
            if let (Some(id), Err(_)) = (made, claimed.await) {
                control.abandon(&id).await;
            }
        });
        // The task always answers: it is not cancelled while the tracker waits for it.
        let (spawned, claim) = answered.await.map_err(|_| Unavailable::ShuttingDown)?;
        let _ = claim.send(());
        spawned
    }

    /// Admits a sandbox, with the id of the box that it is given if there is one.
    async fn admit(
        self: &Arc<Self>,
        new: NewSandbox,
        ttl: Duration,
        warm: Option<WarmBox>,
        is_fenced: bool,
    ) -> Result<(InProgress, Granted, Option<Claim>)> {
        if let Some(warm) = warm {
            let mut claimed = new.clone();
            claimed.sandbox.id = warm.id().clone();
            claimed.placement.reachable = Arc::default();
            if claimed.egress.is_none() && !is_fenced {
                // Nothing is left to be done, so that one write is enough.
                claimed.sandbox.state = State::Running;
            }
            let in_progress = self.spawns.begin(warm.id());
            let answer = self.set_warm_deadline(&warm, ttl + ORPHAN_GRACE);
            let admission = pin!(self.admission.admit(claimed, ttl));
            let (granted, answer) = if warm.ready().is_paused {
                // A refused spawn leaves a paused box paused.
                (admission.await, answer)
            } else {
                // At once, because the two take the same time.
                match select(admission, answer).await {
                    Either::Left((granted, answer)) => (granted, answer),
                    Either::Right((answered, admission)) => (admission.await, ready(answered).boxed()),
                }
            };
            match granted {
                Ok(granted) => return Ok((in_progress, granted, Some(Claim { entry: warm.used(), answer }))),
                Err(refused) => {
                    // After a fault of the store there may be a row.
                    if !matches!(refused, Refused::Store(_) | Refused::Closed) {
                        warm.give_back();
                    }
                    let is_elsewhere = matches!(refused, Refused::NoWorker) && !new.placement.reachable.is_empty();
                    if !is_elsewhere {
                        return Err(self.refused(refused));
                    }
                    // Another worker may have a place for it.
                }
            }
        }
        let in_progress = self.spawns.begin(&new.sandbox.id);
        let granted = self.admission.admit(new, ttl).await.map_err(|refused| self.refused(refused))?;
        Ok((in_progress, granted, None))
    }

    /// Checks the options of a request without calling a provider or worker.
    pub(super) fn check_options(&self, options: &SpawnOptions) -> Result<()> {
        options.check(self.policy.resources).map_err(|error| Error::Invalid(error.to_string()))?;
        options.egress.as_ref().map_or(Ok(()), |policy| self.check_egress(policy))
    }

    /// Determines the size, and whether a box of this size may be made on this server. `asked` are
    /// the fields that the caller chose, `default` is the size where it chose none.
    ///
    /// # Errors
    /// [`Error::LimitReached`] for an explicit value above its ceiling.
    fn size(&self, asked: SizeOptions, default: Resources, quota: &Quota, offer: &Offer) -> Result<(Resources, bool)> {
        let is_far = self.policy.far_provider.as_deref() == Some(&offer.name);
        let ceilings = |site| -> Ceilings { self.policy.sizes.of(quota, site) };
        let site = if is_far || offer.elsewhere { Site::Elsewhere } else { Site::Here };
        let size = ceilings(site).size(asked, default).map_err(Limit::AboveCeiling)?;
        Ok((size, is_far || ceilings(Site::Here).allow(&size)))
    }

    /// Returns whether this server can make such a box. A disk bound that comes from a ceiling
    /// only is dropped if the provider does not support one, as the sandbox's detail then shows.
    fn can_be_here(&self, offer: &Offer, spec: &mut Spec, names_disk: bool) -> Result<bool> {
        let refused = match offer.check(spec) {
            Err(error @ Error::NotSupported(_)) if !names_disk && spec.resources.disk_mb > 0 => error,
            answer => return answer.map_err(|error| self.with_image(spec, error)),
        };
        spec.resources.disk_mb = 0;
        offer.check(spec).map_err(|_| self.with_image(spec, refused))
    }

    pub(super) async fn plan(&self, request: SpawnRequest) -> Result<Plan> {
        let asked = request.options.size;
        let request = self.filled(request).await?;
        self.plan_filled(request, asked).await
    }

    /// Plans a request whose template was filled in. `asked` are the size fields that the caller
    /// chose, not the template.
    pub(super) async fn plan_filled(&self, request: SpawnRequest, asked: SizeOptions) -> Result<Plan> {
        let SpawnRequest { options, owner, key, generation, asker, template_egress, source, .. } = request;
        self.check_options(&options)?;
        let quota = self.quota_of(owner.as_ref()).await?;
        let ttl = self.policy.limits.under(&quota).ttl(options.ttl).map_err(|error| above("ttl", error))?;
        let mut offer = self.offer(options.provider.as_deref()).await?;
        if let Some(source) = &source {
            self.keep_here(&mut offer, source)?;
        }
        let default = options.size.unwrap_or(self.policy.resources);
        let (resources, fits_here) = self.size(asked, default, &quota, &offer)?;
        Control::check_pids(source.as_ref(), &resources)?;
        let is_copy = matches!(&source, Some(Source::Kept(snapshot)) if snapshot.is_temporary);
        let (kept, imaged) = match source {
            Some(Source::Kept(snapshot)) => (Some(snapshot.id), None),
            Some(Source::Image(snapshot)) => (None, Some(snapshot)),
            None => (None, None),
        };
        let is_of_snapshot = kept.is_some() || imaged.is_some();
        let image = options.image.or_else(|| self.policy.image.clone()).unwrap_or_else(|| offer.default_image());
        let own = options.egress.unwrap_or_else(|| self.egress.default_policy().clone());
        let egress = SandboxEgress { template: template_egress, own };
        let names_secrets = egress.secrets().next().is_some();
        if names_secrets && self.policy.far_provider.as_deref() != Some(&offer.name) {
            for policy in egress.each() {
                self.check_secrets(Some(policy), owner.as_ref()).await?;
            }
        }
        let mut spec = Spec {
            image,
            resources,
            entrypoint: options.entrypoint.unwrap_or(false),
            metadata: options.metadata,
            lifetime: ttl + ORPHAN_GRACE,
            trust: None,
            snapshot: kept,
            is_copy,
            egress: asked_of_provider(&egress),
            asker,
        };
        let names_disk = options.size.disk_mb.is_some_and(|disk_mb| disk_mb > 0);
        let here = fits_here && self.can_be_here(&offer, &mut spec, names_disk)?;
        let here = here && self.has_room(&offer, &spec)?;
        if let Some(provider) = offer.here.as_deref().filter(|_| here && imaged.is_none()) {
            self.check_image(provider, &spec.image).await?;
        }
        let auto_pause = options.auto_pause.filter(|idle| !idle.is_zero());
        if let Some(provider) = offer.here.as_deref().filter(|_| auto_pause.is_some() && !offer.elsewhere) {
            pauses_of(provider)?;
        }
        let now = self.now();
        let sandbox = Sandbox {
            id: SandboxId::from_entropy(rand::random()),
            state: State::Creating,
            provider: offer.name,
            image: spec.image.clone(),
            resources: spec.resources,
            metadata: spec.metadata.clone(),
            owner,
            worker: LOCAL_WORKER.to_owned(),
            created_at: now,
            expires_at: clock::after(now, ttl),
            ended_at: None,
            error: None,
            auto_pause,
        };
        let (caps, mut placement, pool) = (self.policy.caps, self.placement(here), self.place());
        if names_secrets || is_of_snapshot {
            // The secrets are in the store of this server, and snapshots on this host.
            placement.reachable = Arc::default();
        }
        let new = NewSandbox { sandbox, egress, caps, key, placement, pool };
        let prepare = options.prepare.unwrap_or_default();
        Ok(Plan { new, spec, ttl, prepare, generation, imaged })
    }

    /// Fills options that the request leaves out from its snapshot or its template.
    pub(super) async fn filled(&self, request: SpawnRequest) -> Result<SpawnRequest> {
        if request.snapshot.is_some() { self.with_snapshot(request).await } else { self.with_template(request).await }
    }

    /// Fills options that the request leaves out from its template.
    pub(super) async fn with_template(&self, mut request: SpawnRequest) -> Result<SpawnRequest> {
        let Some(name) = request.template.take() else { return Ok(request) };
        let template =
            self.store.template(&name).await?.ok_or_else(|| Error::NotFound(Resource::Template, name.clone()))?;
        let limits = self.limits_of(request.owner.as_ref()).await?;
        // The caller did not choose the template's lifetime. It is lowered to the maximum.
        let ttl = template.options.ttl.map(|ttl| ttl.min(limits.ttl_max));
        request.template_egress.clone_from(&template.options.egress);
        request.options = request.options.or(SpawnOptions { ttl, ..template.options });
        request.options.metadata.insert(TEMPLATE_LABEL.to_owned(), name);
        Ok(request)
    }

    /// Starts the box, unless the sandbox has been given one, and stores the outcome.
    async fn make(self: &Arc<Self>, sandbox: Sandbox, order: Order, mut phases: Vec<Phase>) -> Result<Spawned> {
        let Order { egress, spec, placement, generation, prepare: commands, claim, warm_snapshot } = order;
        let (id, is_running) = (sandbox.id.clone(), sandbox.state == State::Running);
        let started = async {
            let claimed = self.claimed(&sandbox, claim, &mut phases).await?;
            if let Some(generation) = generation {
                let written = Instant::now();
                self.take_up(&id, generation).await?;
                more_of_the_store(&mut phases, written);
            }
            let (sandbox, provider, mut started, commands) = match claimed {
                Some(provider) => (sandbox, provider, Started { phases: Vec::new() }, &commands[..0]),
                None => {
                    let spec = Spec { trust: self.authority_certificate(&sandbox, &egress).await?, ..spec };
                    let of_snapshot = match &warm_snapshot {
                        Some(snapshot) => self.start_of_warm_snapshot(snapshot, &sandbox, &spec).await,
                        None => None,
                    };
                    match of_snapshot.zip(warm_snapshot.as_ref()) {
                        Some((started, snapshot)) => {
                            (sandbox, Arc::clone(&snapshot.provider), started, snapshot.left(&commands))
                        }
                        None => {
                            let (sandbox, provider, started) = self.start(sandbox, &spec, placement).await?;
                            (sandbox, provider, started, &commands[..])
                        }
                    }
                }
            };
            let began = Instant::now();
            if let Err(error) = self.finish_box(&sandbox, &egress, commands, provider.as_ref()).await {
                // Without its connections and programs the box is not what was asked for.
                let _ = provider.stop(&sandbox.id).await;
                return Err(error);
            }
            if !commands.is_empty() {
                started.phases.push(Phase { name: "prepare", took: began.elapsed() });
            }
            Ok((sandbox, provider, started))
        };
        let (sandbox, provider, started) = match started.await {
            Ok(made) => made,
            Err(error) => {
                let broke = Change::Broke { error: error.to_string(), at: self.now() };
                return Err(match self.apply(&id, broke).await? {
                    Applied::Refused(_) => self.ended_meanwhile(&id).await?.unwrap_or(error),
                    Applied::Done { .. } | Applied::Missing => error,
                });
            }
        };
        phases.extend(started.phases);
        if is_running {
            self.publish_running(&sandbox);
            self.record_phases(&sandbox.provider, &phases);
            return Ok(Spawned { sandbox, phases });
        }
        let written = Instant::now();
        match self.apply(&id, Change::Started).await {
            Ok(Applied::Done { sandbox, .. }) => {
                more_of_the_store(&mut phases, written);
                self.record_phases(&sandbox.provider, &phases);
                Ok(Spawned { sandbox: *sandbox, phases })
            }
            // Deleted before the box existed: the removal of the row may have found no box yet.
            Ok(Applied::Refused(_) | Applied::Missing) => {
                if let Err(error) = provider.stop(&id).await {
                    tracing::warn!(%id, error = %Chain(&error), "cannot remove an orphan; retrying later");
                }
                let ended = self.ended_meanwhile(&id).await?;
                Err(ended.unwrap_or_else(|| Conflict::DestroyedWhileCreated { sandbox: id.clone() }.into()))
            }
            // The reconciler finds the row or the box once the store is back.
            Err(error) => Err(error),
        }
    }

    /// Returns the error of a sandbox that this server has ended while it was being created, as for what it
    /// took of the disk.
    async fn ended_meanwhile(&self, id: &SandboxId) -> Result<Option<Error>> {
        let failed = self.store.sandbox(id).await?.filter(|row| row.state == State::Failed);
        let reason = failed.and_then(|row| row.error);
        Ok(reason.map(|reason| Conflict::EndedWhileCreated { reason }.into()))
    }

    /// Serves the connections of a box that was started, and runs the commands that prepare it.
    pub(super) async fn finish_box(
        &self,
        sandbox: &Sandbox,
        egress: &SandboxEgress,
        commands: &[PrepareCommand],
        provider: &dyn Provider,
    ) -> Result<()> {
        self.begin_egress(sandbox, egress, provider).await?;
        if commands.is_empty() {
            return Ok(());
        }
        let limits = self.limits_of(sandbox.owner.as_ref()).await?;
        let failed = |error| runtime_error(sandbox, error);
        let guest = provider.guest(&sandbox.id).await.map_err(failed)?;
        prepare(&guest, commands, &limits, failed).await
    }

    /// Starts the box on the worker that the sandbox was placed on. If the worker cannot be
    /// reached, it certainly did not receive the request, and the sandbox is placed on another.
    async fn start(
        &self,
        mut sandbox: Sandbox,
        spec: &Spec,
        mut placement: PlacementFilter,
    ) -> Result<(Sandbox, Arc<dyn Provider>, Started)> {
        loop {
            let provider = self.runtime_of(&sandbox).await?;
            let awaited = self.await_image(provider.as_ref(), &sandbox).await;
            let _room = match sandbox.worker.as_str() {
                LOCAL_WORKER => self.room_for_copy(provider.as_ref(), spec).await?,
                _ => None,
            };
            let started = tokio::select! {
                started = provider.start(&sandbox.id, spec) => started,
                () = self.registry.remote_workers().falls_silent(&sandbox.worker) => {
                    let silent = providers::Error::Unavailable("it did not answer a probe".to_owned());
                    return Err(no_answer(&sandbox, &silent));
                }
            };
            if let Some(awaited) = awaited {
                self.image_came(provider.as_ref(), awaited, started.as_ref().err()).await;
            }
            let error = match started {
                Ok(started) => return Ok((sandbox, provider, started)),
                Err(error) => error,
            };
            let is_unasked = matches!(error, providers::Error::NotAsked(_));
            let from = WorkerId::parse(&sandbox.worker).ok().filter(|from| is_unasked && !from.is_local());
            let Some(from) = from else { return Err(runtime_error(&sandbox, error)) };
            tracing::warn!(
                id = %sandbox.id,
                worker = %from,
                error = %Chain(&error),
                "worker unreachable; not placing sandboxes on it until its next heartbeat"
            );
            // Each worker is tried once, even if it sends a heartbeat meanwhile.
            placement.reachable = placement.reachable.iter().filter(|id| **id != from).cloned().collect();
            match self.store.place_anew(&sandbox.id, &from, self.now(), &placement).await? {
                Some(elsewhere) => sandbox = elsewhere,
                None => return Err(runtime_error(&sandbox, error)),
            }
        }
    }

    /// Removes sandboxes that were admitted after their callers had gone.
    pub async fn remove_abandoned(self: Arc<Self>, mut abandoned: mpsc::UnboundedReceiver<SandboxId>) {
        while let Some(id) = abandoned.recv().await {
            self.abandon(&id).await;
        }
    }

    /// Removes a sandbox whose caller has gone. If it fails, the reconciler removes the sandbox.
    async fn abandon(self: &Arc<Self>, id: &SandboxId) {
        if let Err(error) = self.destroy_because(id, StopReason::Abandoned).await {
            tracing::warn!(%id, error = %Chain(&error), "cannot remove an abandoned sandbox; retrying later");
        }
    }
}

/// Returns the policies on connections that a provider is asked to hold, each once.
fn asked_of_provider(egress: &SandboxEgress) -> Vec<EgressPolicy> {
    let mut policies: Vec<EgressPolicy> = egress.each().filter(|_| !egress.is_none()).cloned().collect();
    policies.dedup();
    policies
}

/// Adds the time since `written` to the `store` phase.
fn more_of_the_store(phases: &mut [Phase], written: Instant) {
    if let Some(store) = phases.iter_mut().find(|phase| phase.name == "store") {
        store.took += written.elapsed();
    }
}
