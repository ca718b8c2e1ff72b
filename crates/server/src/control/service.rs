//! The service: its parts, and what all operations share.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use domain::{OwnerId, SandboxId, State, StopReason, Timestamp};
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::TaskTracker;

use super::audit_trail::AuditTrail;
use super::builds::archives::Archives;
use super::builds::kept::Builds;
use super::conflict::Conflict;
use super::contexts::kernel::Kernels;
use super::disk::reservations::Reservations;
use super::error::{Error, Result};
use super::guest::reverse_ports::Announced;
use super::owner_cache::Owners;
use super::pause::activity::Pauses;
use super::policy::Policy;
use super::resource::Resource;
use super::snapshots::in_progress::Snapshotting;
use super::spawn::in_progress::Spawns;
use super::usage::samples::Samples;
use super::waiters::Waiters;
use super::warm::parts::Warm;
use crate::admission::{Admission, QueueStats};
use crate::egress::Egress;
use crate::events::{EventType, Events, ID_BLOCK};
use crate::operation_metrics::{Operation, Operations};
use crate::owner_keys::OwnerKeys;
use crate::port_watch::PortWatch;
use crate::provider_registry::Registry;
use crate::secrets::Secrets;
use store::clock::Clock;
use store::{Applied, Change, Sandbox, Store};

pub(super) type Removal = Shared<BoxFuture<'static, std::result::Result<(), Arc<Error>>>>;

/// The service, shared by all handlers and background tasks.
pub struct Control {
    pub(super) store: Arc<dyn Store>,
    pub(super) registry: Registry,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) policy: Policy,
    /// Tasks that must finish even if their caller has gone.
    pub(super) tasks: TaskTracker,
    pub(super) spawns: Arc<Spawns>,
    /// Sandboxes that this process is removing now. Concurrent callers wait for one removal.
    pub(super) removing: Mutex<HashMap<SandboxId, Removal>>,
    pub(super) events: Arc<Events>,
    pub(super) audit: AuditTrail,
    pub(super) operations: Operations,
    pub(super) admission: Arc<Admission>,
    /// Requests that wait for a sandbox to change its state.
    pub(super) waiters: Waiters,
    pub(super) egress: Egress,
    pub(super) secrets: Arc<Secrets>,
    pub(super) port_watch: Arc<PortWatch>,
    /// Connections that callers may take.
    pub(super) announced: Arc<Announced>,
    /// Last samples of the resources that sandboxes use.
    pub(super) samples: Samples,
    pub(super) pauses: Pauses,
    pub(super) snapshotting: Snapshotting,
    /// Sandboxes that are being paused at the end of their lifetimes.
    pub(super) ending: Mutex<HashSet<SandboxId>>,
    /// Disk space for the snapshots and machines that are being written.
    pub(super) reservations: Reservations,
    pub(super) warm: Warm,
    pub(super) owner_keys: Arc<OwnerKeys>,
    pub(super) owners: Owners,
    pub(super) builds: Builds,
    pub(super) kernels: Kernels,
}

/// Parts that [`Control`] is made of.
pub struct ControlParts {
    pub store: Arc<dyn Store>,
    pub registry: Registry,
    pub clock: Arc<dyn Clock>,
    pub policy: Policy,
    pub events: Arc<Events>,
    pub admission: Arc<Admission>,
    pub egress: Egress,
    pub secrets: Arc<Secrets>,
    pub port_watch: Arc<PortWatch>,
    pub owner_keys: Arc<OwnerKeys>,
    /// Archives for builds of templates.
    pub archives: Archives,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Control {
    /// Creates the service from its parts, without starting any task.
    pub fn assemble(parts: ControlParts) -> Arc<Self> {
        let ControlParts {
            store,
            registry,
            clock,
            policy,
            events,
            admission,
            egress,
            secrets,
            port_watch,
            owner_keys,
            archives,
        } = parts;
        let warm = Warm::new(&policy.warm_pool);
        Arc::new(Self {
            store,
            registry,
            clock,
            policy,
            tasks: TaskTracker::new(),
            spawns: Arc::default(),
            warm,
            removing: Mutex::default(),
            events,
            audit: AuditTrail::default(),
            operations: Operations::default(),
            admission,
            waiters: Waiters::default(),
            egress,
            secrets,
            port_watch,
            announced: Arc::default(),
            samples: Samples::default(),
            pauses: Pauses::default(),
            snapshotting: Snapshotting::default(),
            ending: Mutex::default(),
            reservations: Reservations::default(),
            owner_keys,
            owners: Owners::default(),
            builds: Builds::new(archives),
            kernels: Kernels::default(),
        })
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the limits and defaults in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the registry of providers.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the tracker of tasks that must finish even if their caller has gone.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Returns the connections out of sandboxes.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Returns the watches of the ports of boxes.
    pub fn port_watch(&self) -> &PortWatch {
        &self.port_watch
    }

    /// Returns the statistics of the spawn queue.
    pub fn queue_stats(&self) -> QueueStats {
        self.admission.stats()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Returns whether this process is creating or removing any sandbox now.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        !self.spawns.is_empty() || !self.removing.lock().is_empty()
    }

    /// Returns whether this process is creating or removing the sandbox now, or keeps its box ready.
    pub(crate) fn is_in_hand(&self, id: &SandboxId) -> bool {
        self.spawns.contains(id) || self.removing.lock().contains_key(id) || self.warm.pool.holds(id)
    }

    /// Publishes an event; `data` is an object without secrets.
    pub(crate) fn publish(&self, kind: EventType, sandbox: Option<&SandboxId>, data: serde_json::Value) {
        self.events.publish(kind, sandbox, self.now(), data);
    }

    /// Publishes an event about something of `owner` that is no sandbox; without an owner it is about the service.
    pub(crate) fn publish_of(&self, owner: Option<&OwnerId>, kind: EventType, data: serde_json::Value) {
        self.events.publish_of(owner, kind, self.now(), data);
    }

    /// Publishes an action of the reconciler; `action` is one word.
    pub(crate) fn publish_action(&self, action: &str, sandbox: Option<&SandboxId>, mut data: serde_json::Value) {
        data["action"] = json!(action);
        self.publish(EventType::ReconcileAction, sandbox, data);
    }

    /// Publishes that a sandbox is running, and wakes the requests that wait for it.
    pub(super) fn publish_running(&self, sandbox: &Sandbox) {
        self.waiters.wake(&sandbox.id);
        let data = json!({"provider": sandbox.provider, "worker_id": sandbox.worker.as_str()});
        self.publish(EventType::SandboxRunning, Some(&sandbox.id), data);
    }

    /// Returns the events of this server.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Reserves ids for future events.
    ///
    /// # Errors
    /// If the store fails; the caller then tries again.
    pub async fn reserve_event_ids(&self) -> Result<()> {
        self.events.take_ids(self.store.reserve_event_ids(ID_BLOCK).await?);
        Ok(())
    }

    /// Counts an operation that began at `started`.
    pub(super) fn record(&self, operation: Operation, provider: &str, succeeded: bool, started: Instant) {
        self.operations.record(operation, provider, succeeded, started.elapsed());
    }

    /// Stores a change, wakes the requests that wait for it and publishes its event.
    pub(super) async fn apply(&self, id: &SandboxId, change: Change) -> Result<Applied> {
        let applied = self.store.apply(id, change.clone()).await?;
        if let Applied::Done { before, sandbox } = &applied
            && *before != sandbox.state
        {
            self.waiters.wake(id);
        }
        if let Applied::Done { before, sandbox } = &applied
            && before.is_active()
            && !sandbox.state.is_active()
        {
            self.admission.freed(sandbox.owner.as_ref());
            self.samples.forget(id);
        }
        if let Applied::Done { before, sandbox } = &applied
            && let Some(kind) = event_of(&change, *before, sandbox.state)
        {
            let mut data = json!({"provider": sandbox.provider, "worker_id": sandbox.worker.as_str()});
            match &change {
                Change::Extended { .. } => data["expires_at"] = json!(sandbox.expires_at.to_string()),
                Change::Broke { error, .. } => data["error"] = json!(error),
                Change::Started
                | Change::Paused { .. }
                | Change::Resumed { .. }
                | Change::StopRequested { .. }
                | Change::Stopped { .. } => {}
            }
            self.publish(kind, Some(id), data);
        }
        Ok(applied)
    }

    /// Returns the sandbox if requests may see it: not destroyed, and not expired.
    pub(super) async fn visible(&self, id: &str) -> Result<Sandbox> {
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let parsed = SandboxId::parse(id).map_err(|_| missing())?;
        let sandbox = self.store.sandbox(&parsed).await?.ok_or_else(missing)?;
        if is_visible(&sandbox, self.now()) { Ok(sandbox) } else { Err(missing()) }
    }

    /// Returns the sandbox if commands and file operations can reach it; a paused one goes on first.
    pub(super) async fn usable(&self, id: &str) -> Result<Sandbox> {
        let sandbox = self.living(id).await?;
        if sandbox.state != State::Paused {
            return Ok(sandbox);
        }
        if sandbox.terms.as_ref().is_some_and(|terms| !terms.wakes) {
            return Err(Conflict::Paused { sandbox: id.to_owned() }.into());
        }
        self.wake(&sandbox).await
    }

    /// Returns the sandbox if its box is there, running or paused.
    pub(super) async fn living(&self, id: &str) -> Result<Sandbox> {
        let sandbox = self.visible(id).await?;
        match sandbox.state {
            State::Running | State::Paused => Ok(sandbox),
            State::Creating => Err(Conflict::BeingCreated { sandbox: id.to_owned() }.into()),
            State::Failed => Err(Conflict::Failed { sandbox: id.to_owned(), reason: sandbox.error }.into()),
            State::Destroying | State::Destroyed => Err(Error::NotFound(Resource::Sandbox, id.to_owned())),
        }
    }
}

/// Returns the event of a stored change; `None` if it repeats an earlier one.
fn event_of(change: &Change, before: State, after: State) -> Option<EventType> {
    match change {
        Change::Started => Some(EventType::SandboxRunning),
        Change::Extended { .. } => Some(EventType::SandboxExtended),
        // A failed sandbox was deleted.
        Change::StopRequested { .. } if before != after && after == State::Destroyed => {
            Some(EventType::SandboxDestroyed)
        }
        Change::StopRequested { reason: StopReason::Expired, .. } if before != after => Some(EventType::SandboxExpired),
        Change::Stopped { .. } if before != after => Some(EventType::SandboxDestroyed),
        Change::Broke { .. } => Some(EventType::SandboxFailed),
        // Published once the provider has done it.
        Change::Paused { .. } | Change::Resumed { .. } => None,
        Change::StopRequested { .. } | Change::Stopped { .. } => None,
    }
}

/// Returns whether requests may see the sandbox.
fn is_visible(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.state != State::Destroyed && !sandbox.has_expired(now)
}
