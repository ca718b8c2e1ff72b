//! Spawn: decide, store the row, start the box, store the outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{
    AskedSize, Asker, Ceilings, InvalidMetadata, InvalidName, Metadata, OwnerId, Quota, Resources, SandboxId, Site,
    State, StopReason, WorkerId,
};
use providers::{Chain, Phase, Provider, Spec, Started};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::admission::{above, too_large};
use super::guests::{no_answer, runtime_error};
use super::runtime::Offer;
use super::templates::TEMPLATE_LABEL;
use super::{Control, Error, LOCAL_WORKER, ORPHAN_GRACE, Resource, Result, WAIT_MAX, WaitFor, lock};
use crate::admission::Granted;
use crate::clock;
use crate::events::EventType;
use crate::operation_metrics::Operation;
use crate::store::workers::PlacementFilter;
use crate::store::{Applied, Change, IdempotencyKey, NewSandbox, Sandbox, TemplateValues};

/// A spawn request; `None` stands for the template's value, else the server's default.
#[derive(Debug, Clone, Default)]
pub struct SpawnRequest {
    pub image: Option<String>,
    pub provider: Option<String>,
    /// Memory limit in mebibytes.
    pub memory_mb: Option<u32>,
    pub vcpus: Option<u32>,
    /// Size bound of the sandbox's own file system in mebibytes; 0 for none.
    pub disk_mb: Option<u32>,
    /// True to start the image's entry point.
    pub entrypoint: Option<bool>,
    pub ttl: Option<Duration>,
    pub metadata: Metadata,
    /// Owner charged for the sandbox.
    pub owner: Option<OwnerId>,
    /// Template whose values are the defaults.
    pub template: Option<String>,
    /// The caller's own key for this request.
    pub key: Option<IdempotencyKey>,
    /// Generation of the lease, if a control plane sends the request.
    pub generation: Option<u64>,
    /// Size from the template, which the caller did not choose itself.
    pub of_template: AskedSize,
    /// Caller, whose share of bounded places is limited.
    pub asker: Option<Asker>,
}

/// A sandbox that was spawned.
#[derive(Debug, Clone)]
pub struct Spawned {
    pub sandbox: Sandbox,
    /// Start-up phases with their durations, in order.
    pub phases: Vec<Phase>,
}

/// A validated request with its row, before admission.
pub(super) struct Plan {
    sandbox: Sandbox,
    spec: Spec,
    ttl: Duration,
    key: Option<IdempotencyKey>,
    placement: PlacementFilter,
    generation: Option<u64>,
}

/// Parameters for starting the box once the sandbox row exists.
struct Order {
    spec: Spec,
    placement: PlacementFilter,
    generation: Option<u64>,
}

impl Plan {
    /// Returns the provider, the owner and the eligible workers.
    pub(super) fn wish(&self) -> (&str, Option<&OwnerId>, &PlacementFilter) {
        (&self.sandbox.provider, self.sandbox.owner.as_ref(), &self.placement)
    }

    /// Returns the row to be stored.
    pub(super) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl Control {
    /// Spawns a sandbox, or returns the one that an earlier request with the same key spawned.
    ///
    /// The box is started by a task of its own. If the caller goes away meanwhile, the sandbox
    /// is removed again, at any step.
    ///
    /// # Errors
    /// [`Error::LimitReached`] when a cap or the maximum lifetime forbids it, [`Error::Invalid`]
    /// and [`Error::NotSupported`] for a request that no box can satisfy, [`Error::Unavailable`]
    /// without a healthy provider, [`Error::Conflict`] for a key used with another request.
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
        let provider = plan.sandbox.provider.clone();
        let outcome = self.admit_and_make(plan, started).await;
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

    /// Returns the sandbox of the request's key, once it is running.
    async fn spawned_before(&self, request: &SpawnRequest) -> Result<Option<Spawned>> {
        let Some(key) = &request.key else { return Ok(None) };
        let Some((made_for, id)) = self.store.keyed(request.owner.as_ref(), &key.key, self.now()).await? else {
            return Ok(None);
        };
        if made_for != key.request {
            return Err(Error::Conflict(
                "`Idempotency-Key` was used for another request; use a new key for each sandbox".to_owned(),
            ));
        }
        let gone = || {
            Error::Conflict(format!(
                "the sandbox `{id}` that was made with this `Idempotency-Key` has ended; use a new key"
            ))
        };
        match self.wait(id.as_str(), WaitFor::Running, WAIT_MAX).await {
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

    async fn admit_and_make(self: &Arc<Self>, plan: Plan, started: Instant) -> Result<Spawned> {
        let in_progress = InProgress::begin(self, &plan.sandbox.id);
        let Plan { sandbox, spec, ttl, key, placement, generation } = plan;
        let order = Order { spec, placement: placement.clone(), generation };
        let new = NewSandbox { sandbox, caps: self.policy.caps, key, placement, pool: self.place() };
        let admitted = self.admission.admit(new, ttl).await.map_err(|refused| self.refused(refused))?;
        // No await from here until the task owns the sandbox. If the caller goes away, either
        // the task or the admission removes it.
        let Granted { sandbox, stored } = admitted;
        self.publish(EventType::SandboxCreated, Some(&sandbox.id), json!({"provider": sandbox.provider}));
        let phases = vec![
            Phase { name: "admission", took: started.elapsed().saturating_sub(stored) },
            Phase { name: "store", took: stored },
        ];
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
        let (spawned, claim) =
            answered.await.map_err(|_| Error::Unavailable("the server is shutting down".to_owned()))?;
        let _ = claim.send(());
        spawned
    }

    /// Validates a request without calling a provider or worker.
    pub(super) fn check_shape(&self, request: &SpawnRequest) -> Result<()> {
        InvalidMetadata::check(&request.metadata).map_err(|error| Error::Invalid(error.to_string()))?;
        let default = self.default_size(request);
        let image = request.image.as_deref().map_or(Ok(()), InvalidName::check_image);
        image.map_err(|error| Error::Invalid(error.to_string()))?;
        let resources = Resources {
            memory_mb: request.memory_mb.unwrap_or(default.memory_mb),
            vcpus: request.vcpus.unwrap_or(default.vcpus),
            disk_mb: request.disk_mb.unwrap_or(default.disk_mb),
            pids: default.pids,
        };
        resources.check().map_err(|error| Error::Invalid(error.to_string()))
    }

    /// Returns the size of a sandbox where the request names none.
    fn default_size(&self, request: &SpawnRequest) -> Resources {
        let (template, own) = (request.of_template, self.policy.resources);
        Resources {
            memory_mb: template.memory_mb.unwrap_or(own.memory_mb),
            vcpus: template.vcpus.unwrap_or(own.vcpus),
            disk_mb: template.disk_mb.unwrap_or(own.disk_mb),
            pids: own.pids,
        }
    }

    /// Determines the size, and whether a box of this size may be made on this server.
    ///
    /// # Errors
    /// [`Error::LimitReached`] for an explicit value above its ceiling.
    fn size(&self, request: &SpawnRequest, quota: &Quota, offer: &Offer) -> Result<(Resources, bool)> {
        let is_far = self.policy.far_provider.as_deref() == Some(&offer.name);
        let ceilings = |site| -> Ceilings { self.policy.sizes.of(quota, site) };
        let site = if is_far || offer.elsewhere { Site::Elsewhere } else { Site::Here };
        let SpawnRequest { memory_mb, vcpus, disk_mb, .. } = *request;
        let asked = AskedSize { memory_mb, vcpus, disk_mb };
        let size = ceilings(site).size(asked, self.default_size(request)).map_err(too_large)?;
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
        let request = self.with_template(request).await?;
        self.check_shape(&request)?;
        let quota = self.quota_of(request.owner.as_ref()).await?;
        let ttl = self.policy.limits.under(&quota).ttl(request.ttl).map_err(|error| above("ttl", error))?;
        let offer = self.offer(request.provider.as_deref()).await?;
        let (resources, fits_here) = self.size(&request, &quota, &offer)?;
        let image = request.image.or_else(|| self.policy.image.clone()).unwrap_or_else(|| offer.default_image());
        let lifetime = ttl + ORPHAN_GRACE;
        let mut spec = Spec {
            image: image.clone(),
            resources,
            entrypoint: request.entrypoint.unwrap_or(false),
            metadata: request.metadata.clone(),
            lifetime,
            asker: request.asker,
        };
        let names_disk = request.disk_mb.or(request.of_template.disk_mb).is_some_and(|disk_mb| disk_mb > 0);
        let here = fits_here && self.can_be_here(&offer, &mut spec, names_disk)?;
        let here = here && self.has_room(&offer, &spec)?;
        let resources = spec.resources;
        if let Some(provider) = offer.here.as_deref().filter(|_| here) {
            self.check_image(provider, &spec.image).await?;
        }
        let placement = self.placement(here);
        let now = self.now();
        let sandbox = Sandbox {
            id: SandboxId::from_entropy(rand::random()),
            state: State::Creating,
            provider: offer.name,
            image,
            resources,
            metadata: request.metadata,
            owner: request.owner,
            worker: LOCAL_WORKER.to_owned(),
            created_at: now,
            expires_at: clock::after(now, ttl),
            ended_at: None,
            error: None,
        };
        Ok(Plan { sandbox, spec, ttl, key: request.key, placement, generation: request.generation })
    }

    /// Fills values that the request leaves out from its template.
    pub(super) async fn with_template(&self, mut request: SpawnRequest) -> Result<SpawnRequest> {
        let Some(name) = request.template.take() else { return Ok(request) };
        let template =
            self.store.template(&name).await?.ok_or_else(|| Error::NotFound(Resource::Template, name.clone()))?;
        let TemplateValues { image, provider, memory_mb, vcpus, disk_mb, entrypoint, ttl, mut metadata } =
            template.values;
        let limits = self.limits_of(request.owner.as_ref()).await?;
        metadata.extend(request.metadata);
        metadata.insert(TEMPLATE_LABEL.to_owned(), name);
        Ok(SpawnRequest {
            image: request.image.or(image),
            provider: request.provider.or(provider),
            memory_mb: request.memory_mb,
            vcpus: request.vcpus,
            disk_mb: request.disk_mb,
            entrypoint: request.entrypoint.or(entrypoint),
            // The caller did not choose the template's lifetime. It is lowered to the maximum.
            ttl: request.ttl.or(ttl.map(|ttl| ttl.min(limits.ttl_max))),
            metadata,
            owner: request.owner,
            template: None,
            key: request.key,
            generation: request.generation,
            of_template: AskedSize { memory_mb, vcpus, disk_mb },
            asker: request.asker,
        })
    }

    /// Starts the box and stores the outcome.
    async fn make(self: &Arc<Self>, sandbox: Sandbox, order: Order, mut phases: Vec<Phase>) -> Result<Spawned> {
        let id = sandbox.id.clone();
        let started = async {
            if let Some(generation) = order.generation {
                let written = Instant::now();
                self.take_up(&id, generation).await?;
                more_of_the_store(&mut phases, written);
            }
            self.start(sandbox, &order.spec, order.placement).await
        };
        let provider = match started.await {
            Ok((provider, started)) => {
                phases.extend(started.phases);
                provider
            }
            Err(error) => {
                let broke = Change::Broke { error: error.to_string(), at: self.now() };
                self.apply(&id, broke).await?;
                return Err(error);
            }
        };
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
                    tracing::warn!(%id, error = %Chain(&error), "cannot remove an orphan yet");
                }
                Err(Error::Conflict(format!("sandbox `{id}` was destroyed while it was being created")))
            }
            // The reconciler finds the row or the box once the store is back.
            Err(error) => Err(error),
        }
    }

    /// Starts the box on the worker that the sandbox was placed on. If the worker cannot be
    /// reached, it certainly did not receive the request, and the sandbox is placed on another.
    async fn start(
        &self,
        mut sandbox: Sandbox,
        spec: &Spec,
        mut placement: PlacementFilter,
    ) -> Result<(Arc<dyn Provider>, Started)> {
        loop {
            let provider = self.runtime_of(&sandbox).await?;
            let awaited = self.await_image(provider.as_ref(), &sandbox).await;
            let started = tokio::select! {
                started = provider.start(&sandbox.id, spec) => started,
                () = self.registry.remote_workers().falls_silent(&sandbox.worker) => {
                    let silent = providers::Error::Unavailable("it was probed in vain".to_owned());
                    return Err(no_answer(&sandbox, &silent));
                }
            };
            if let Some(awaited) = awaited {
                self.image_came(provider.as_ref(), awaited, started.as_ref().err()).await;
            }
            let error = match started {
                Ok(started) => return Ok((provider, started)),
                Err(error) => error,
            };
            let is_unasked = matches!(error, providers::Error::NotAsked(_));
            let from = WorkerId::parse(&sandbox.worker).ok().filter(|from| is_unasked && !from.is_local());
            let Some(from) = from else { return Err(runtime_error(&sandbox, error)) };
            tracing::warn!(
                id = %sandbox.id,
                worker = %from,
                error = %Chain(&error),
                "a worker cannot be reached and gets no sandboxes until it beats again"
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
            tracing::warn!(%id, error = %Chain(&error), "cannot remove an abandoned sandbox yet");
        }
    }
}

/// Adds the time since `written` to the `store` phase.
fn more_of_the_store(phases: &mut [Phase], written: Instant) {
    if let Some(store) = phases.iter_mut().find(|phase| phase.name == "store") {
        store.took += written.elapsed();
    }
}

/// Guard that marks a sandbox as being created by this process, until dropped.
struct InProgress {
    control: Arc<Control>,
    id: SandboxId,
}

impl InProgress {
    fn begin(control: &Arc<Control>, id: &SandboxId) -> Self {
        lock(&control.in_progress).insert(id.clone(), ());
        Self { control: Arc::clone(control), id: id.clone() }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        lock(&self.control.in_progress).remove(&self.id);
    }
}

/// Converts a provider's failure to start a box into the caller's error.
pub(super) fn provider_error(provider: &str, error: providers::Error) -> Error {
    use providers::Error as P;
    match error {
        P::Invalid(text) | P::TooLarge(text) => Error::Invalid(text),
        P::NotFound(text) => Error::NoFile(text),
        P::NotSupported(text) => Error::NotSupported(text),
        P::NoSpace => Error::NoSpace,
        P::Full(text) => Error::Full(text),
        P::Exhausted(text) => Error::LimitReached(text),
        P::Unavailable(text) => Error::Unavailable(format!("the provider `{provider}` is not available: {text}")),
        P::NoImage(text) => Error::Unavailable(format!("the image is not available: {text}")),
        P::Conflict(text) => Error::Conflict(text),
        P::NotAsked(error) => provider_error(provider, *error),
        P::Gone => Error::Conflict("the sandbox ended".to_owned()),
        P::Failed { action, .. } => Error::Provider { provider: provider.to_owned(), action, source: Arc::new(error) },
    }
}
