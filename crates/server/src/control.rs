//! What the service does: one file a verb. The only part that decides; handlers
//! ask it and translate.

mod admission;
mod audit;
mod boxes;
mod collected;
mod create;
mod destroy;
mod exec;
mod extend;
mod figures;
mod held;
mod images;
mod inventory;
mod pool;
mod query;
mod quotas;
mod room;
mod runtime;
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
use crate::operations::{Operation, Operations};
use crate::registry::Registry;
use crate::store::{self, Applied, Change, PoolBounds, Store};

pub use crate::admission::Figures as QueueFigures;
pub use crate::store::workers::{Heartbeat, LeaseCounts};
pub use crate::store::{
    AuditEntry, AuditFilter, Counts, IdempotencyKey, ListFilter, NewAuditEntry, OwnerQuota, Place, QuotaSummary,
    Sandbox, Template, TemplateValues,
};
pub use admission::Decision;
pub use collected::Collected;
#[cfg(test)]
pub use collected::collected_of;
pub use create::{SpawnRequest, Spawned};
pub use exec::{Conversation, ExecCommand, ExecOutcome, ExecRequest, Handle, Running, Touch};
pub use figures::Stored;
pub use held::Held;
pub use images::Pull;
pub(crate) use inventory::Kept;
pub use pool::{PoolStatus, SharedBoxes};
pub use query::ProviderDetail;
pub use quotas::Usage;
pub use wait::{WAIT_MAX, WaitFor};
pub use workers::{LEASE_TTL_MAX, Seen, hostname};

/// The worker that holds every sandbox of a single server.
pub const LOCAL_WORKER: &str = "local";
/// An agent ends its box by itself so long after the last end it was told.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(3600);

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be named and not be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// A sandbox.
    Sandbox,
    /// A template.
    Template,
    /// A provider.
    Provider,
    /// A worker.
    Worker,
    /// A lease.
    Lease,
    /// An owner's quota.
    Quota,
    /// An image.
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

/// Why the service did not do what was asked. Texts are for the caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It asks for what the provider cannot do.
    #[error("{0}")]
    NotSupported(String),
    /// What it names is not there.
    #[error("{0} `{1}` does not exist")]
    NotFound(Resource, String),
    /// The provider that it names is not there.
    #[error("there is no provider `{name}`; this server has {known}")]
    NoProvider {
        /// The name in the request.
        name: String,
        /// Those that there are, each in backquotes.
        known: String,
    },
    /// There is no such file in the sandbox.
    #[error("{0}")]
    NoFile(String),
    /// What it makes is there already, or is in a state that forbids it.
    #[error("{0}")]
    Conflict(String),
    /// What was sent is larger than may be.
    #[error("{0}")]
    TooLarge(String),
    /// A cap or a maximum is reached.
    #[error("{0}")]
    LimitReached(String),
    /// Nobody can do it now.
    #[error("{0}")]
    Unavailable(String),
    /// A file system in a box is full.
    #[error("no space left in the sandbox; delete files, or spawn with a larger disk")]
    NoSpace,
    /// A file system of the host is full.
    #[error("{0}")]
    Full(String),
    /// What was waited for did not come.
    #[error("{0}")]
    Timeout(String),
    /// A provider failed.
    #[error("the provider `{provider}` failed to {action}; the server's log has the cause")]
    Provider {
        /// Which.
        provider: String,
        /// What it was about to do.
        action: &'static str,
        /// What it said.
        #[source]
        source: Arc<providers::Error>,
    },
    /// The image store failed.
    #[error("the image store failed to {action}; the server's log has the cause")]
    Images {
        /// What it was about to do.
        action: &'static str,
        /// What it said.
        #[source]
        source: Arc<providers::Error>,
    },
    /// The store failed.
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

/// The limits and defaults that decisions follow.
#[derive(Debug, Clone)]
pub struct Policy {
    /// On time.
    pub limits: Limits,
    /// On numbers.
    pub caps: Caps,
    /// The size of a sandbox when a request leaves it out.
    pub resources: Resources,
    /// On the size of one sandbox.
    pub sizes: SizeRules,
    /// The provider whose boxes another service holds, if there is one.
    pub far_provider: Option<String>,
    /// Whether a spawn that finds no room may wait for it.
    pub queue: QueuePolicy,
    /// How many boxes are shared, by how many; `None` when pool mode is off.
    pub pool: Option<PoolBounds>,
    /// The image when a request leaves it out; `None` for the provider's own.
    pub image: Option<String>,
    /// Bytes of each output stream that a buffered answer holds.
    pub output_bytes_max: usize,
    /// How long rows of what has ended are kept.
    pub retention: Duration,
    /// How much of the audit history is kept.
    pub audit: AuditBounds,
    /// The most templates.
    pub templates_max: u64,
    /// The most owners' quotas.
    pub quotas_max: u64,
    /// Free disk below which the box that fills it is ended, in bytes.
    pub reserve_disk_bytes: u64,
    /// Free inodes below which the box that takes the most is ended.
    pub reserve_inodes: u64,
    /// How long workers are trusted without being heard.
    pub leases: Leases,
    /// Whether other workers are configured.
    pub has_workers: bool,
}

/// How much of the audit history is kept.
#[derive(Debug, Clone, Copy)]
pub struct AuditBounds {
    /// How long.
    pub retention: Duration,
    /// How many rows.
    pub entries_max: u64,
}

type Removal = Shared<BoxFuture<'static, std::result::Result<(), Arc<Error>>>>;

/// The service.
pub struct Control {
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    clock: Arc<dyn Clock>,
    policy: Policy,
    /// What must finish although its caller has gone.
    tasks: TaskTracker,
    /// Sandboxes that this process is making right now. A row that says
    /// `creating` and is not here was left by a crash.
    making: Mutex<HashMap<SandboxId, ()>>,
    /// Sandboxes that this process is removing right now, so that two callers
    /// wait for one removal.
    removing: Mutex<HashMap<SandboxId, Removal>>,
    events: Arc<Events>,
    /// Rows that were written into the audit history since the start.
    audited: AtomicU64,
    /// Who was refused in this minute.
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
    /// Puts the parts together. Nothing runs until it is asked.
    pub fn assemble(
        store: Arc<dyn Store>,
        registry: Arc<Registry>,
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
            making: Mutex::default(),
            removing: Mutex::default(),
            events,
            audited: AtomicU64::new(0),
            refusals: Refusals::default(),
            operations: Operations::default(),
            admission,
            waits: wait::Waits::default(),
        })
    }

    /// Now.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The limits and defaults in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The providers.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What must finish although its caller has gone.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// The figures of the spawn queue.
    pub fn queue_figures(&self) -> QueueFigures {
        self.admission.figures()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Whether this process is making or removing any sandbox right now.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.making).is_empty() || !lock(&self.removing).is_empty()
    }

    /// Whether this process is making or removing it right now.
    pub(crate) fn is_in_hand(&self, id: &SandboxId) -> bool {
        lock(&self.making).contains_key(id) || lock(&self.removing).contains_key(id)
    }

    /// Tells whoever listens; `data` is an object without secrets.
    pub(crate) fn publish(&self, kind: EventType, sandbox: Option<&SandboxId>, data: serde_json::Value) {
        self.events.publish(kind, sandbox, self.now(), data);
    }

    /// Tells that the reconciler did something by itself: what, in a word.
    pub(crate) fn publish_action(&self, action: &str, sandbox: Option<&SandboxId>, mut data: serde_json::Value) {
        data["action"] = json!(action);
        self.publish(EventType::ReconcileAction, sandbox, data);
    }

    /// What happened, for those who listen.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Sets ids aside for events to come.
    ///
    /// # Errors
    /// If the store fails; then it is asked for again.
    pub async fn reserve_event_ids(&self) -> Result<()> {
        self.events.take_ids(self.store.reserve_event_ids(ID_BLOCK).await?);
        Ok(())
    }

    /// Counts an operation that began at `started`.
    fn record(&self, operation: Operation, provider: &str, succeeded: bool, started: Instant) {
        self.operations.record(operation, provider, succeeded, started.elapsed());
    }

    /// Stores a change, and tells whoever waits for one or listens.
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

    /// The sandbox if a request may see it: not destroyed, and not past its end.
    async fn visible(&self, id: &str) -> Result<Sandbox> {
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let parsed = SandboxId::parse(id).map_err(|_| missing())?;
        let sandbox = self.store.sandbox(&parsed).await?.ok_or_else(missing)?;
        if is_visible(&sandbox, self.now()) { Ok(sandbox) } else { Err(missing()) }
    }

    /// The sandbox if commands and file operations can reach it.
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

/// What a change that was stored is to those who listen; a repetition is nothing.
fn event_of(change: &Change, before: State, after: State) -> Option<EventType> {
    match change {
        Change::Started => Some(EventType::SandboxRunning),
        Change::Extended { .. } => Some(EventType::SandboxExtended),
        // A failed one was deleted.
        Change::StopRequested { .. } if before != after && after == State::Destroyed => {
            Some(EventType::SandboxDestroyed)
        }
        Change::StopRequested { reason: StopReason::Expired, .. } if before != after => Some(EventType::SandboxExpired),
        Change::Stopped { .. } if before != after => Some(EventType::SandboxDestroyed),
        Change::Broke { .. } => Some(EventType::SandboxFailed),
        Change::StopRequested { .. } | Change::Stopped { .. } => None,
    }
}

/// Whether a request may see it.
fn is_visible(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.state != State::Destroyed && !has_expired(sandbox, now)
}

/// Whether its lifetime is over before it has ended otherwise. From that instant it
/// is gone, whatever the clean-up has done so far.
fn has_expired(sandbox: &Sandbox, now: Timestamp) -> bool {
    match sandbox.state {
        State::Creating | State::Running | State::Destroying => sandbox.expires_at <= now,
        // A failed one ended before its time, and its reason is for whoever asks.
        State::Failed | State::Destroyed => false,
    }
}
