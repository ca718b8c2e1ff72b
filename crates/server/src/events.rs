//! What happened, for whoever listens.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use domain::{SandboxId, Timestamp};
use serde_json::Value;

/// How many events are kept for readers that come back.
pub const HISTORY_MAX: usize = 1000;

/// The kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// A sandbox was admitted and is being made.
    SandboxCreated,
    /// A sandbox answers.
    SandboxRunning,
    /// A sandbox has a new end.
    SandboxExtended,
    /// A sandbox's lifetime is over.
    SandboxExpired,
    /// Nothing of a sandbox is left.
    SandboxDestroyed,
    /// A sandbox was ended by a fault.
    SandboxFailed,
    /// A command was started.
    ExecStarted,
    /// A command ended with exit code 0.
    ExecCompleted,
    /// A command ended otherwise, or could not be run.
    ExecFailed,
    /// A command was ended by its deadline.
    ExecTimeout,
    /// A file was written.
    FileWritten,
    /// A file was deleted.
    FileDeleted,
    /// A spawn waits for room.
    SpawnQueued,
    /// A waiting spawn found room.
    SpawnDequeued,
    /// A waiting spawn found none in time.
    SpawnQueueTimeout,
    /// An owner's quota was saved.
    QuotaSaved,
    /// An owner's quota was deleted.
    QuotaDeleted,
    /// A template was saved.
    TemplateSaved,
    /// A template was deleted.
    TemplateDeleted,
    /// A provider can work again.
    ProviderHealthy,
    /// A provider can no longer work.
    ProviderUnhealthy,
    /// A worker is there.
    WorkerOnline,
    /// A worker has not been heard of.
    WorkerStale,
    /// The reconciler finished or removed something.
    ReconcileAction,
    /// A request met a limit.
    ResourceLimit,
}

impl EventType {
    /// Every kind.
    pub const ALL: [EventType; 25] = {
        use EventType as E;
        [
            E::SandboxCreated,
            E::SandboxRunning,
            E::SandboxExtended,
            E::SandboxExpired,
            E::SandboxDestroyed,
            E::SandboxFailed,
            E::ExecStarted,
            E::ExecCompleted,
            E::ExecFailed,
            E::ExecTimeout,
            E::FileWritten,
            E::FileDeleted,
            E::SpawnQueued,
            E::SpawnDequeued,
            E::SpawnQueueTimeout,
            E::QuotaSaved,
            E::QuotaDeleted,
            E::TemplateSaved,
            E::TemplateDeleted,
            E::ProviderHealthy,
            E::ProviderUnhealthy,
            E::WorkerOnline,
            E::WorkerStale,
            E::ReconcileAction,
            E::ResourceLimit,
        ]
    };

    /// Its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        use EventType as E;
        match self {
            E::SandboxCreated => "sandbox.created",
            E::SandboxRunning => "sandbox.running",
            E::SandboxExtended => "sandbox.extended",
            E::SandboxExpired => "sandbox.expired",
            E::SandboxDestroyed => "sandbox.destroyed",
            E::SandboxFailed => "sandbox.failed",
            E::ExecStarted => "exec.started",
            E::ExecCompleted => "exec.completed",
            E::ExecFailed => "exec.failed",
            E::ExecTimeout => "exec.timeout",
            E::FileWritten => "file.written",
            E::FileDeleted => "file.deleted",
            E::SpawnQueued => "spawn.queued",
            E::SpawnDequeued => "spawn.dequeued",
            E::SpawnQueueTimeout => "spawn.queue_timeout",
            E::QuotaSaved => "quota.saved",
            E::QuotaDeleted => "quota.deleted",
            E::TemplateSaved => "template.saved",
            E::TemplateDeleted => "template.deleted",
            E::ProviderHealthy => "provider.healthy",
            E::ProviderUnhealthy => "provider.unhealthy",
            E::WorkerOnline => "worker.online",
            E::WorkerStale => "worker.stale",
            E::ReconcileAction => "reconcile.action",
            E::ResourceLimit => "resource.limit",
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Rises from event to event, across restarts too.
    pub id: u64,
    /// What.
    pub kind: EventType,
    /// To which sandbox, if to one.
    pub sandbox: Option<SandboxId>,
    /// When.
    pub at: Timestamp,
    /// What else there is to know: an object.
    pub data: Value,
}

/// The latest events.
#[derive(Debug, Default)]
pub struct Events {
    history: Mutex<VecDeque<Arc<Event>>>,
}

impl Events {
    /// Tells whoever listens. Never waits for a slow reader.
    pub fn publish(&self, kind: EventType, sandbox: Option<&SandboxId>, at: Timestamp, data: Value) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let id = history.back().map_or(1, |last| last.id + 1);
        if history.len() == HISTORY_MAX {
            history.pop_front();
        }
        history.push_back(Arc::new(Event { id, kind, sandbox: sandbox.cloned(), at, data }));
    }
}
