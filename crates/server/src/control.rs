//! Operations of the service, one file each. All decisions are made here; HTTP handlers only
//! translate requests and answers.

mod admission;
mod audit;
mod collected;
mod destroy;
mod exec;
mod extend;
mod guests;
mod images;
mod inventory;
mod leased;
mod pool;
mod query;
mod quotas;
mod room;
mod runtime;
mod spawn;
mod stats;
mod templates;
mod wait;
mod workers;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::{Caps, Limits, Resources, SandboxId, SizeRules, State, StopReason, Timestamp};
use futures_util::future::{BoxFuture, Shared};
use providers::Chain;
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::admission::{Admission, QueuePolicy};
use crate::audit::Refusals;
use crate::clock::Clock;
use crate::config::Leases;
use crate::events::{EventType, Events, ID_BLOCK};
use crate::operation_metrics::{Operation, Operations};
use crate::provider_registry::Registry;
use crate::store::{self, Applied, Change, PoolBounds, Store};

pub use self::images::Pull;
pub use crate::admission::QueueStats;
pub use crate::store::workers::{Heartbeat, LeaseCounts};
pub use crate::store::{
    AuditEntry, AuditFilter, Counts, Cursor, IdempotencyKey, ListFilter, NewAuditEntry, OwnerQuota, QuotaSummary,
    Sandbox, Template,
};
pub use admission::Decision;
pub use collected::Collected;
#[cfg(test)]
pub use collected::collected_of;
pub use exec::{Conversation, ExecCommand, ExecOutcome, ExecRequest, Handle, Running, Touch};
pub(crate) use inventory::Kept;
pub use leased::Held;
pub use pool::{PoolStatus, SharedBoxes};
pub use query::ProviderDetail;
pub use quotas::Usage;
pub use spawn::{SpawnRequest, Spawned};
pub use stats::Stored;
pub use wait::{WAIT_MAX, WaitFor};
pub use workers::{LEASE_TTL_MAX, Seen, hostname};

/// The worker that holds every sandbox of a single server.
pub const LOCAL_WORKER: &str = "local";
/// Time after the last expiry it was given at which an agent ends its box by itself.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(3600);

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kinds of objects that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Sandbox,
    Template,
    Provider,
    Worker,
    Lease,
    Quota,
    Image,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Sandbox => "sandbox",
            Resource::Template => "template",
            Resource::Provider => "provider",
            Resource::Worker => "worker",
            Resource::Lease => "lease on",
            Resource::Quota => "quota of the owner",
            Resource::Image => "image",
        })
    }
}

/// Errors of an operation. Texts are for the caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is malformed or has values out of bounds.
    #[error("{0}")]
    Invalid(String),
    /// The provider does not support the request.
    #[error("{0}")]
    NotSupported(String),
    /// The object that the request names does not exist.
    #[error("{0} `{1}` does not exist")]
    NotFound(Resource, String),
    /// The provider that the request names does not exist.
    #[error("there is no provider `{name}`; this server has {known}")]
    NoProvider {
        /// Name in the request.
        name: String,
        /// Known providers, each in backquotes.
        known: String,
    },
    /// The sandbox has no such file.
    #[error("{0}")]
    NoFile(String),
    /// The object exists already, or its state forbids the operation.
    #[error("{0}")]
    Conflict(String),
    /// The body of the request is too large.
    #[error("{0}")]
    TooLarge(String),
    /// A cap or a maximum is reached.
    #[error("{0}")]
    LimitReached(String),
    /// The request cannot be served now; a retry may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// A file system in a box is full.
    #[error("no space left in the sandbox; delete files, or spawn with a larger disk")]
    NoSpace,
    /// A file system of the host is full.
    #[error("{0}")]
    Full(String),
    /// The awaited event did not occur before the deadline.
    #[error("{0}")]
    Timeout(String),
    #[error("the provider `{provider}` failed to {action}; the server's log has the cause")]
    Provider {
        provider: String,
        /// Operation that failed, as a verb phrase.
        action: &'static str,
        #[source]
        source: Arc<providers::Error>,
    },
    /// The image store failed.
    #[error("the image store failed to {action}; the server's log has the cause")]
    Images {
        /// Operation that failed, as a verb phrase.
        action: &'static str,
        #[source]
        source: Arc<::images::Error>,
    },
    #[error("the store is not available; the server's log has the cause")]
    Store(#[source] store::Error),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        if !error.is_full() {
            return Self::Store(error);
        }
        tracing::warn!(error = %Chain(&error), "the database cannot be written");
        Self::Full("the disk with the server's database is full; destroy sandboxes or make room on it".to_owned())
    }
}

/// Limits and defaults of decisions.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Limits on lifetimes and deadlines.
    pub limits: Limits,
    /// Caps on the number of sandboxes.
    pub caps: Caps,
    /// Size of a sandbox where a request leaves it out.
    pub resources: Resources,
    /// Rules on the size of one sandbox.
    pub sizes: SizeRules,
    /// Provider whose boxes another service runs, if one is configured.
    pub far_provider: Option<String>,
    /// Queue for spawns that find no room.
    pub queue: QueuePolicy,
    /// Bounds of the shared boxes; `None` when pool mode is off.
    pub pool: Option<PoolBounds>,
    /// Image where a request leaves it out; `None` for the provider's default.
    pub image: Option<String>,
    /// Maximum size of each output stream in a buffered answer, in bytes.
    pub output_bytes_max: usize,
    /// Time for which rows of ended sandboxes are kept.
    pub retention: Duration,
    /// Bounds of the audit history.
    pub audit: AuditBounds,
    /// Maximum number of templates.
    pub templates_max: u64,
    /// Maximum number of owners' quotas.
    pub quotas_max: u64,
    /// Free disk space in bytes below which the box that uses most of it is ended.
    pub reserve_disk_bytes: u64,
    /// Number of free inodes below which the box that uses most of them is ended.
    pub reserve_inodes: u64,
    /// Lease duration, grace period, and the age of a heartbeat that makes a worker stale.
    pub leases: Leases,
    /// True if other workers are configured.
    pub has_workers: bool,
}

/// Bounds of the audit history.
#[derive(Debug, Clone, Copy)]
pub struct AuditBounds {
    pub retention: Duration,
    /// Maximum number of rows.
    pub entries_max: u64,
}

type Removal = Shared<BoxFuture<'static, std::result::Result<(), Arc<Error>>>>;

/// The service, shared by all handlers and background tasks.
pub struct Control {
    store: Arc<dyn Store>,
    registry: Registry,
    clock: Arc<dyn Clock>,
    policy: Policy,
    /// Tasks that must finish even if their caller has gone.
    tasks: TaskTracker,
    /// Sandboxes that this process is creating now. A row in state `creating` that is missing
    /// here was left by a crash.
    in_progress: Mutex<HashMap<SandboxId, ()>>,
    /// Sandboxes that this process is removing now. Concurrent callers wait for one removal.
    removing: Mutex<HashMap<SandboxId, Removal>>,
    events: Arc<Events>,
    /// Number of rows written into the audit history since the start.
    audited: AtomicU64,
    /// Clients refused in the current minute.
    refusals: Refusals,
    operations: Operations,
    admission: Arc<Admission>,
    /// Requests that wait for a sandbox to change its state.
    waits: wait::Waits,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("policy", &self.policy).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps hold no invariant that a panic between two statements could break.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// Creates the service from its parts, without starting any task.
    pub fn assemble(
        store: Arc<dyn Store>,
        registry: Registry,
        clock: Arc<dyn Clock>,
        policy: Policy,
        tasks: TaskTracker,
        events: Arc<Events>,
        admission: Arc<Admission>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            registry,
            clock,
            policy,
            tasks,
            in_progress: Mutex::default(),
            removing: Mutex::default(),
            events,
            audited: AtomicU64::new(0),
            refusals: Refusals::default(),
            operations: Operations::default(),
            admission,
            waits: wait::Waits::default(),
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
        !lock(&self.in_progress).is_empty() || !lock(&self.removing).is_empty()
    }

    /// Returns whether this process is creating or removing the sandbox now.
    pub(crate) fn is_in_hand(&self, id: &SandboxId) -> bool {
        lock(&self.in_progress).contains_key(id) || lock(&self.removing).contains_key(id)
    }

    /// Publishes an event; `data` is an object without secrets.
    pub(crate) fn publish(&self, kind: EventType, sandbox: Option<&SandboxId>, data: serde_json::Value) {
        self.events.publish(kind, sandbox, self.now(), data);
    }

    /// Publishes an action of the reconciler; `action` is one word.
    pub(crate) fn publish_action(&self, action: &str, sandbox: Option<&SandboxId>, mut data: serde_json::Value) {
        data["action"] = json!(action);
        self.publish(EventType::ReconcileAction, sandbox, data);
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
    fn record(&self, operation: Operation, provider: &str, succeeded: bool, started: Instant) {
        self.operations.record(operation, provider, succeeded, started.elapsed());
    }

    /// Stores a change, wakes the requests that wait for it and publishes its event.
    async fn apply(&self, id: &SandboxId, change: Change) -> Result<Applied> {
        let applied = self.store.apply(id, change.clone()).await?;
        if let Applied::Done { before, sandbox } = &applied
            && *before != sandbox.state
        {
            self.waits.wake(id);
        }
        if let Applied::Done { before, sandbox } = &applied
            && before.is_active()
            && !sandbox.state.is_active()
        {
            self.admission.freed(sandbox.owner.as_ref());
        }
        if let Applied::Done { before, sandbox } = &applied
            && let Some(kind) = event_of(&change, *before, sandbox.state)
        {
            let mut data = json!({"provider": sandbox.provider, "worker_id": sandbox.worker});
            match &change {
                Change::Extended { expires_at, .. } => data["expires_at"] = json!(expires_at.to_string()),
                Change::Broke { error, .. } => data["error"] = json!(error),
                Change::Started | Change::StopRequested { .. } | Change::Stopped { .. } => {}
            }
            self.publish(kind, Some(id), data);
        }
        Ok(applied)
    }

    /// Returns the sandbox if requests may see it: not destroyed, and not expired.
    async fn visible(&self, id: &str) -> Result<Sandbox> {
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let parsed = SandboxId::parse(id).map_err(|_| missing())?;
        let sandbox = self.store.sandbox(&parsed).await?.ok_or_else(missing)?;
        if is_visible(&sandbox, self.now()) { Ok(sandbox) } else { Err(missing()) }
    }

    /// Returns the sandbox if commands and file operations can reach it.
    async fn usable(&self, id: &str) -> Result<Sandbox> {
        let sandbox = self.visible(id).await?;
        match sandbox.state {
            State::Running => Ok(sandbox),
            State::Creating => Err(Error::Conflict(format!(
                "sandbox `{id}` is still being created; wait for it with GET /api/v1/sandboxes/{id}/wait"
            ))),
            State::Failed => Err(Error::Conflict(format!(
                "sandbox `{id}` has failed: {}",
                sandbox.error.as_deref().unwrap_or("no reason is known")
            ))),
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
        Change::StopRequested { .. } | Change::Stopped { .. } => None,
    }
}

/// Returns whether requests may see the sandbox.
fn is_visible(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.state != State::Destroyed && !has_expired(sandbox, now)
}

/// Returns whether the lifetime is over and the sandbox has not ended otherwise. It is invisible
/// from that instant, however far its removal is.
fn has_expired(sandbox: &Sandbox, now: Timestamp) -> bool {
    match sandbox.state {
        State::Creating | State::Running | State::Destroying => sandbox.expires_at <= now,
        // A failed sandbox ended before its expiry, and callers may still read its error.
        State::Failed | State::Destroyed => false,
    }
}
