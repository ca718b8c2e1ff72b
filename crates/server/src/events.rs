//! Events of the service, and the readers that follow them.
//!
//! Events are kept in one ring that all readers share and read by id, so that a slow reader
//! delays nothing else: it finds that events are gone, and how many. Ids rise across restarts,
//! because they are taken from blocks that the store has set aside before the first of them is
//! used.

mod readers;
pub mod subscription;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use domain::{OwnerId, SandboxId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use readers::Readers;

pub use readers::Full;

/// The most events that are kept for readers that come back.
pub const HISTORY_MAX: usize = 1000;
/// Number of ids that the store sets aside at once. While fewer than these are left, the next
/// block is requested.
pub const ID_BLOCK: u64 = 1024;

/// The kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// A sandbox was admitted and is being made.
    SandboxCreated,
    /// A sandbox is ready and answers.
    SandboxRunning,
    /// A sandbox has a new end.
    SandboxExtended,
    /// The processes of a sandbox have stopped where they were.
    SandboxPaused,
    /// The processes of a paused sandbox go on.
    SandboxResumed,
    SandboxReclaimed,
    /// A paused sandbox was written to disk.
    SandboxSuspended,
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
    /// Connections out of a sandbox were refused: the newest, and their number since the last event.
    EgressDenied,
    /// A sandbox has a new policy on connections.
    EgressChanged,
    /// A snapshot of a sandbox was taken.
    SnapshotCreated,
    /// A snapshot was removed.
    SnapshotDeleted,
    /// A secret was saved.
    SecretSaved,
    /// A secret was deleted.
    SecretDeleted,
    /// A process of a sandbox listens on a port.
    PortsOpened,
    /// No process of a sandbox listens on a port any more.
    PortsClosed,
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
    /// An image is being fetched.
    ImagePulling,
    /// An image is here: it was fetched, or came in an archive.
    ImagePulled,
    /// An image could not be fetched.
    ImageFailed,
    /// An image, or one of its names, was removed.
    ImageRemoved,
    /// A worker has registered or is heard of again.
    WorkerOnline,
    /// A worker has not been heard of.
    WorkerStale,
    /// The reconciler finished or removed something.
    ReconcileAction,
    /// A request met a limit.
    ResourceLimit,
}

impl EventType {
    pub const ALL: [EventType; 41] = {
        use EventType as E;
        [
            E::SandboxCreated,
            E::SandboxRunning,
            E::SandboxExtended,
            E::SandboxPaused,
            E::SandboxResumed,
            E::SandboxReclaimed,
            E::SandboxSuspended,
            E::SandboxExpired,
            E::SandboxDestroyed,
            E::SandboxFailed,
            E::ExecStarted,
            E::ExecCompleted,
            E::ExecFailed,
            E::ExecTimeout,
            E::FileWritten,
            E::FileDeleted,
            E::EgressDenied,
            E::EgressChanged,
            E::SnapshotCreated,
            E::SnapshotDeleted,
            E::SecretSaved,
            E::SecretDeleted,
            E::PortsOpened,
            E::PortsClosed,
            E::SpawnQueued,
            E::SpawnDequeued,
            E::SpawnQueueTimeout,
            E::QuotaSaved,
            E::QuotaDeleted,
            E::TemplateSaved,
            E::TemplateDeleted,
            E::ProviderHealthy,
            E::ProviderUnhealthy,
            E::ImagePulling,
            E::ImagePulled,
            E::ImageFailed,
            E::ImageRemoved,
            E::WorkerOnline,
            E::WorkerStale,
            E::ReconcileAction,
            E::ResourceLimit,
        ]
    };

    /// Returns the kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Returns its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        use EventType as E;
        match self {
            E::SandboxCreated => "sandbox.created",
            E::SandboxRunning => "sandbox.running",
            E::SandboxExtended => "sandbox.extended",
            E::SandboxPaused => "sandbox.paused",
            E::SandboxResumed => "sandbox.resumed",
            E::SandboxReclaimed => "sandbox.reclaimed",
            E::SandboxSuspended => "sandbox.suspended",
            E::SandboxExpired => "sandbox.expired",
            E::SandboxDestroyed => "sandbox.destroyed",
            E::SandboxFailed => "sandbox.failed",
            E::ExecStarted => "exec.started",
            E::ExecCompleted => "exec.completed",
            E::ExecFailed => "exec.failed",
            E::ExecTimeout => "exec.timeout",
            E::FileWritten => "file.written",
            E::FileDeleted => "file.deleted",
            E::EgressDenied => "egress.denied",
            E::EgressChanged => "egress.changed",
            E::SnapshotCreated => "snapshot.created",
            E::SnapshotDeleted => "snapshot.deleted",
            E::SecretSaved => "secret.saved",
            E::SecretDeleted => "secret.deleted",
            E::PortsOpened => "ports.opened",
            E::PortsClosed => "ports.closed",
            E::SpawnQueued => "spawn.queued",
            E::SpawnDequeued => "spawn.dequeued",
            E::SpawnQueueTimeout => "spawn.queue_timeout",
            E::QuotaSaved => "quota.saved",
            E::QuotaDeleted => "quota.deleted",
            E::TemplateSaved => "template.saved",
            E::TemplateDeleted => "template.deleted",
            E::ProviderHealthy => "provider.healthy",
            E::ProviderUnhealthy => "provider.unhealthy",
            E::ImagePulling => "image.pulling",
            E::ImagePulled => "image.pulled",
            E::ImageFailed => "image.failed",
            E::ImageRemoved => "image.removed",
            E::WorkerOnline => "worker.online",
            E::WorkerStale => "worker.stale",
            E::ReconcileAction => "reconcile.action",
            E::ResourceLimit => "resource.limit",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Number that rises from event to event, across restarts too.
    pub id: u64,
    pub kind: EventType,
    /// Sandbox that it happened to, if any.
    pub sandbox: Option<SandboxId>,
    /// Owner of what it happened to, if that is no sandbox.
    pub owner: Option<OwnerId>,
    pub at: Timestamp,
    /// Details of the event: an object.
    pub data: Value,
}

/// Counts of events and of their readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub subscribers: u64,
    /// Events that are kept at present.
    pub history_size: u64,
    /// Events since the start of the process, including those that are no longer kept.
    pub events_total: u64,
}

/// Latest events, and their readers.
#[derive(Debug)]
pub struct Events {
    history: Mutex<History>,
    /// The latest id; readers wait for it to change.
    latest: watch::Sender<u64>,
    readers: Mutex<Readers>,
    ids_low: Notify,
    closed: CancellationToken,
}

#[derive(Debug)]
struct History {
    /// Events in the order of their ids.
    ring: VecDeque<Arc<Event>>,
    /// The first id of this process.
    first: u64,
    /// Id of the next event.
    next: u64,
    /// The first id that is not set aside.
    end: u64,
    total: u64,
    /// Events that came while no id was left. For readers, the same number of ids is missing.
    unnumbered: u64,
}

impl Default for Events {
    fn default() -> Self {
        let history =
            History { ring: VecDeque::with_capacity(HISTORY_MAX), first: 1, next: 1, end: 1, total: 0, unnumbered: 0 };
        Self {
            history: Mutex::new(history),
            latest: watch::Sender::new(0),
            readers: Mutex::default(),
            ids_low: Notify::new(),
            closed: CancellationToken::new(),
        }
    }
}

impl Events {
    /// Publishes an event. Waits neither for a slow reader nor for the store. An event for which
    /// no id is left is reported to readers as lost.
    pub fn publish(&self, kind: EventType, sandbox: Option<&SandboxId>, at: Timestamp, data: Value) {
        self.append(|id| Event { id, kind, sandbox: sandbox.cloned(), owner: None, at, data });
    }

    /// Publishes an event about something of `owner` that is no sandbox; as [`Events::publish`] without an owner.
    pub fn publish_of(&self, owner: Option<&OwnerId>, kind: EventType, at: Timestamp, data: Value) {
        self.append(|id| Event { id, kind, sandbox: None, owner: owner.cloned(), at, data });
    }

    fn append(&self, event: impl FnOnce(u64) -> Event) {
        let (latest, is_low) = {
            let mut history = self.lock();
            history.total += 1;
            if history.next == history.end {
                history.unnumbered += 1;
            } else {
                let id = history.next;
                history.next += 1;
                if history.ring.len() == HISTORY_MAX {
                    history.ring.pop_front();
                }
                history.ring.push_back(Arc::new(event(id)));
            }
            (history.next - 1, history.wants_ids())
        };
        self.latest.send_replace(latest);
        if is_low {
            self.ids_low.notify_one();
        }
    }

    /// Waits until another block of ids should be set aside.
    pub async fn ids_wanted(&self) {
        while !self.lock().wants_ids() {
            self.ids_low.notified().await;
        }
    }

    /// Takes a block of ids that the store has set aside for this process for good.
    pub fn take_ids(&self, block: Range<u64>) {
        let mut history = self.lock();
        if history.end == 1 {
            history.first = block.start;
        }
        if history.end != block.start {
            // The rest of the block before is not used: the ids in between are not this
            // process's.
            history.next = block.start;
        }
        history.end = block.end;
        let skipped = history.unnumbered.min(history.end - history.next);
        history.next += skipped;
        history.unnumbered -= skipped;
        let latest = history.next - 1;
        drop(history);
        self.latest.send_replace(latest);
    }

    /// Returns the present counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let subscribers = self.readers().count() as u64;
        let history = self.lock();
        Counts { subscribers, history_size: history.ring.len() as u64, events_total: history.total }
    }

    /// Ends every reader, present and future.
    pub fn close(&self) {
        self.closed.cancel();
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        // Each statement leaves the counts consistent.
        self.readers.lock()
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        // Each statement leaves the history consistent.
        self.history.lock()
    }
}

impl History {
    fn wants_ids(&self) -> bool {
        self.end - self.next < ID_BLOCK
    }
}
