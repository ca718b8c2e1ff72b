//! Admission of spawns: the store is asked in order of arrival.
//!
//! The store's transaction enforces the caps; a task keeps the order. A spawn that finds another
//! takes a place in the queue, so that no later spawn gets ahead of it, and leaves the queue at
//! once if there is room. One that is alone asks by itself: to wake the task takes longer than to
//! ask. Nothing is kept across a restart: the connections of waiting clients are gone then.

mod queue_policy;
mod queue_stats;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use domain::{Denial, NoPlace, OwnerId, Queue, Room, SandboxId, Ticket, Timestamp, WorkerId};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::events::{EventType, Events};
use store::clock::{self, Clock};
use store::{Admitted, NewSandbox, Sandbox, Store};

pub use queue_policy::QueuePolicy;
pub use queue_stats::QueueStats;

/// Maximum number of spawns that one transaction admits: more make it no cheaper for each, and all wait for
/// the last.
const TOGETHER_MAX: usize = 16;

/// Reasons for which a spawn was not admitted.
#[derive(Debug)]
pub enum Refused {
    /// A cap is reached, or every shared box is full, and spawns do not wait for that.
    Denied(Denial, Room),
    /// The queue is full.
    QueueFull(Denial, Room),
    /// The owner's share of the queue is full, with this number of its spawns.
    ShareFull(Denial, Room, usize),
    /// No room came free in time.
    TimedOut(Denial, Room),
    /// No worker is eligible.
    NoWorker,
    /// A sandbox with the same idempotency key exists.
    KeyTaken,
    Store(store::Error),
    /// The server is shutting down.
    Closed,
}

/// An admitted sandbox.
#[derive(Debug)]
pub struct Granted {
    /// The stored row; its times count from the admission.
    pub sandbox: Sandbox,
    /// Duration of the store's transaction.
    pub stored: Duration,
}

/// Guard that gives a place back if the caller goes away while the answer is under way.
struct Unclaimed {
    id: SandboxId,
    claimed: bool,
    abandoned: mpsc::UnboundedSender<SandboxId>,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if !self.claimed {
            // If the receiver is gone too, the reconciler finds the row.
            let _ = self.abandoned.send(self.id.clone());
        }
    }
}

/// A queued spawn.
struct Asking {
    new: NewSandbox,
    ttl: Duration,
    answer: oneshot::Sender<Result<(Granted, Unclaimed), Refused>>,
    /// Wait of the spawn, once it had to wait.
    waits: Option<Waits>,
}

#[derive(Clone, Copy)]
struct Waits {
    since: Instant,
    denial: Denial,
    room: Room,
}

/// Provider, image and size, by which places in shared boxes differ. `None` for a sandbox with a
/// box of its own.
type Kind = Option<(String, String, [u32; 4])>;

impl Asking {
    fn kind(&self) -> Kind {
        let NewSandbox { sandbox, pool, .. } = &self.new;
        let size = sandbox.resources;
        let size = [size.memory_mb, size.vcpus, size.disk_mb, size.pids];
        pool.as_ref().map(|_| (sandbox.provider.clone(), sandbox.image.clone(), size))
    }
}

enum Message {
    Ask(Ticket, Box<Asking>),
    Left(Ticket),
    Freed(Option<OwnerId>),
    QuotaChanged(OwnerId),
}

/// Handle of the admission task.
#[derive(Debug)]
pub struct Admission {
    next: AtomicU64,
    /// Number of spawns in the queue, or on their way to it.
    queued: AtomicUsize,
    /// Right to ask the store.
    turn: Arc<Turn>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    policy: QueuePolicy,
    /// Gone once the task has ended.
    abandoned: mpsc::WeakUnboundedSender<SandboxId>,
    messages: mpsc::UnboundedSender<Message>,
    stats: Arc<Mutex<QueueStats>>,
}

/// Right to ask the store, which one holds at a time.
type Turn = tokio::sync::Mutex<()>;

/// Result of [`Admission::open`].
#[derive(Debug)]
pub struct Opened<T> {
    pub admission: Arc<Admission>,
    /// Future to run as the task.
    pub task: T,
    /// Sandboxes whose callers had gone before the answer, to be removed.
    pub abandoned: mpsc::UnboundedReceiver<SandboxId>,
}

/// Guard that removes a spawn from the queue when its caller goes away before the answer.
struct QueueTicket<'a> {
    admission: &'a Admission,
    ticket: Ticket,
    answered: bool,
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.admission.queued.fetch_sub(1, Ordering::AcqRel);
        if !self.answered {
            self.admission.send(Message::Left(self.ticket));
        }
    }
}

impl Admission {
    /// Creates the handle and the task. Nothing runs until the task is polled. Once `stop` is
    /// cancelled, the task ends and waiting spawns are refused with [`Refused::Closed`].
    #[expect(
        clippy::disallowed_methods,
        reason = "each message stands for a request or a change under way, which are bounded; some are sent on drop"
    )]
    pub fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        events: Arc<Events>,
        policy: QueuePolicy,
        stop: CancellationToken,
    ) -> Opened<impl Future<Output = ()> + use<> + Send> {
        let (messages, received) = mpsc::unbounded_channel();
        let (abandoned, left) = mpsc::unbounded_channel();
        let stats = Arc::new(Mutex::new(QueueStats::default()));
        let turn = Arc::new(Turn::default());
        let admission = Arc::new(Self {
            next: AtomicU64::new(1),
            queued: AtomicUsize::new(0),
            turn: Arc::clone(&turn),
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            policy,
            abandoned: abandoned.downgrade(),
            messages,
            stats: Arc::clone(&stats),
        });
        let task = Task {
            store,
            clock,
            turn,
            events,
            policy,
            received,
            abandoned,
            stop,
            stats,
            queue: Queue::default(),
            fresh: VecDeque::new(),
            waiting: 0,
            waiting_of: HashMap::new(),
        };
        Opened { admission, task: task.run(), abandoned: left }
    }

    /// Requests a place, and waits for one if there is a queue.
    ///
    /// Dropping the future gives the place up, at any stage.
    ///
    /// # Errors
    /// [`Refused`], with the reason.
    pub async fn admit(&self, new: NewSandbox, ttl: Duration) -> Result<Granted, Refused> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.try_lock().ok().filter(|_| self.queued.load(Ordering::Acquire) == 0);
        if turn.is_some()
            && let Some(outcome) = self.admit_alone(&new, ttl).await
        {
            return outcome;
        }
        let (answer, answered) = oneshot::channel();
        self.queued.fetch_add(1, Ordering::AcqRel);
        let mut queued = QueueTicket { admission: self, ticket, answered: false };
        self.send(Message::Ask(ticket, Box::new(Asking { new, ttl, answer, waits: None })));
        // The queue is served by the order of tickets, so that one that came meanwhile is not ahead.
        drop(turn);
        let outcome = answered.await.unwrap_or(Err(Refused::Closed));
        queued.answered = true;
        outcome.map(|(granted, mut unclaimed)| {
            unclaimed.claimed = true;
            granted
        })
    }

    /// Asks the store for a spawn that no other is ahead of; `None` if it has to wait.
    async fn admit_alone(&self, new: &NewSandbox, ttl: Duration) -> Option<Result<Granted, Refused>> {
        let Some(abandoned) = self.abandoned.upgrade() else { return Some(Err(Refused::Closed)) };
        let mut unclaimed = Unclaimed { id: new.sandbox.id.clone(), claimed: false, abandoned };
        let answer = ask(self.store.as_ref(), new, self.clock.now(), ttl).await;
        unclaimed.claimed = true;
        match answer {
            Err(Refused::Denied(denial, _)) if self.policy.waits_for(denial) => None,
            answer => Some(answer),
        }
    }

    /// Reports that a place of `owner` came free.
    pub fn freed(&self, owner: Option<&OwnerId>) {
        self.send(Message::Freed(owner.cloned()));
    }

    /// Reports that the quota of `owner` was saved or deleted.
    pub fn quota_changed(&self, owner: &OwnerId) {
        self.send(Message::QuotaChanged(owner.clone()));
    }

    /// Returns the current statistics.
    pub fn stats(&self) -> QueueStats {
        *self.stats.lock()
    }

    fn send(&self, message: Message) {
        // A task that has ended has no waiting spawns.
        let _ = self.messages.send(message);
    }
}

/// Sets the times of a sandbox that is asked for at `now`.
fn date(sandbox: &mut Sandbox, now: Timestamp, ttl: Duration) {
    sandbox.created_at = now;
    sandbox.expires_at = clock::after(now, ttl);
}

/// Asks the store for a sandbox whose times count from `now`.
async fn ask(store: &dyn Store, new: &NewSandbox, now: Timestamp, ttl: Duration) -> Result<Granted, Refused> {
    let mut new = new.clone();
    date(&mut new.sandbox, now, ttl);
    let began = Instant::now();
    match store.admit(&new).await {
        Ok(Admitted::Yes(worker)) => {
            new.sandbox.worker = worker;
            Ok(Granted { sandbox: new.sandbox, stored: began.elapsed() })
        }
        Ok(Admitted::NoWorker) => Err(Refused::NoWorker),
        Ok(Admitted::Denied(denial, room)) => Err(Refused::Denied(denial, room)),
        Ok(Admitted::KeyTaken) => Err(Refused::KeyTaken),
        Err(error) => Err(Refused::Store(error)),
    }
}

struct Task {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    turn: Arc<Turn>,
    events: Arc<Events>,
    policy: QueuePolicy,
    received: mpsc::UnboundedReceiver<Message>,
    abandoned: mpsc::UnboundedSender<SandboxId>,
    stop: CancellationToken,
    stats: Arc<Mutex<QueueStats>>,
    queue: Queue<Asking, Kind, (Denial, Room)>,
    /// Spawns that arrived since the last round and do not count as waiting yet.
    fresh: VecDeque<Ticket>,
    /// Number of queued spawns that count as waiting.
    waiting: usize,
    /// Number of waiting spawns by owner; entries are at least 1.
    waiting_of: HashMap<Option<OwnerId>, usize>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let deadline = self.deadline();
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = at(deadline) => None,
                message = self.received.recv() => match message {
                    Some(message) => Some(message),
                    None => return,
                },
            };
            if let Some(message) = message {
                self.take(message);
            }
            while let Ok(message) = self.received.try_recv() {
                self.take(message);
            }
            self.give_up_late();
            self.serve().await;
            self.settle_fresh();
        }
    }

    fn count(&self, change: impl FnOnce(&mut QueueStats)) {
        let mut stats = self.stats.lock();
        change(&mut stats);
        stats.depth = self.waiting as u64;
    }

    fn publish(&self, owner: Option<&OwnerId>, kind: EventType, data: serde_json::Value) {
        self.events.publish_of(owner, kind, self.clock.now(), data);
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ask(ticket, asking) => {
                self.queue.join(ticket, asking.new.sandbox.owner.clone(), asking.kind(), *asking);
                self.fresh.push_back(ticket);
            }
            Message::Left(ticket) => {
                self.leave(ticket, |stats| stats.left += 1);
            }
            Message::Freed(owner) => {
                if let Some(owner) = owner {
                    self.queue.release_owner(&owner);
                }
                // After a shared box is removed, a box of any kind can be made.
                self.queue.release_kinds();
            }
            Message::QuotaChanged(owner) => self.queue.release_owner(&owner),
        }
    }

    /// Removes a spawn from the queue; `change` updates the statistics if it had to wait.
    fn leave(&mut self, ticket: Ticket, change: impl FnOnce(&mut QueueStats)) -> Option<Asking> {
        let asking = self.queue.leave(ticket)?;
        if asking.waits.is_some() {
            self.waiting -= 1;
            if let Entry::Occupied(mut own) = self.waiting_of.entry(asking.new.sandbox.owner.clone()) {
                *own.get_mut() -= 1;
                if *own.get() == 0 {
                    own.remove();
                }
            }
            self.count(change);
        }
        Some(asking)
    }

    /// Returns the deadline of the spawn that has waited longest. All have the same maximum
    /// wait, so no deadline is earlier.
    fn deadline(&self) -> Option<Instant> {
        let (_, oldest) = self.queue.oldest()?;
        Some(oldest.waits?.since + self.policy.timeout)
    }

    fn give_up_late(&mut self) {
        let now = Instant::now();
        while let Some((ticket, oldest)) = self.queue.oldest()
            && let Some(waits) = oldest.waits
            && now >= waits.since + self.policy.timeout
        {
            if let Some(asking) = self.leave(ticket, |stats| stats.timed_out += 1) {
                let waited_ms = waits.since.elapsed().as_millis() as u64;
                self.publish(
                    asking.new.sandbox.owner.as_ref(),
                    EventType::SpawnQueueTimeout,
                    json!({"reason": waits.denial.as_str(), "waited_ms": waited_ms}),
                );
                let _ = asking.answer.send(Err(Refused::TimedOut(waits.denial, waits.room)));
            }
        }
    }

    /// Admits queued spawns in order, until none of the next can get a place.
    async fn serve(&mut self) {
        let turn = Arc::clone(&self.turn);
        let _turn = turn.lock().await;
        // Waiters up to this one were asked for together.
        let mut asked = None;
        while let Some((ticket, asking)) = self.queue.first() {
            if asking.answer.is_closed() {
                self.leave(ticket, |stats| stats.left += 1);
                continue;
            }
            if asked.is_none_or(|asked| ticket > asked)
                && let Some(last) = self.serve_together().await
            {
                asked = Some(last);
                continue;
            }
            let Some(asking) = self.queue.get(ticket) else { continue };
            match ask(self.store.as_ref(), &asking.new, self.clock.now(), asking.ttl).await {
                Ok(granted) => self.admitted(ticket, granted),
                Err(Refused::Denied(denial, room)) => {
                    if !self.denied(ticket, denial, room) {
                        return;
                    }
                }
                Err(refused) => self.refuse(ticket, refused),
            }
        }
    }

    /// Asks the store for the next spawns together, if there are several. Returns the last of them; those that
    /// were not admitted are still in the queue.
    async fn serve_together(&mut self) -> Option<Ticket> {
        // One that another server may take is asked for alone, and before those behind it.
        let row = self.queue.row().take(TOGETHER_MAX).take_while(|(_, asking)| asking.new.is_for_here());
        let tickets: Vec<Ticket> =
            row.filter(|(_, asking)| !asking.answer.is_closed()).map(|(ticket, _)| ticket).collect();
        if tickets.len() < 2 {
            return None;
        }
        let now = self.clock.now();
        for ticket in &tickets {
            if let Some(Asking { new, ttl, .. }) = self.queue.get_mut(*ticket) {
                date(&mut new.sandbox, now, *ttl);
            }
        }
        let new: Vec<&NewSandbox> = tickets.iter().filter_map(|ticket| Some(&self.queue.get(*ticket)?.new)).collect();
        let began = Instant::now();
        // After a fault each is asked for by itself.
        let stored = self.store.admit_together(&new).await.unwrap_or_default();
        let took = began.elapsed();
        for (ticket, _) in tickets.iter().zip(stored).filter(|(_, is_stored)| *is_stored) {
            if let Some(asking) = self.queue.get(*ticket) {
                let mut sandbox = asking.new.sandbox.clone();
                sandbox.worker = WorkerId::local();
                self.admitted(*ticket, Granted { sandbox, stored: took });
            }
        }
        tickets.last().copied()
    }

    fn admitted(&mut self, ticket: Ticket, granted: Granted) {
        let waited = self.queue.get_mut(ticket).and_then(|asking| asking.waits).map(|waits| waits.since.elapsed());
        let asking = self.leave(ticket, |stats| {
            stats.dequeued += 1;
            stats.wait_total += waited.unwrap_or_default();
            stats.wait_max = stats.wait_max.max(waited.unwrap_or_default());
        });
        let Some(asking) = asking else { return };
        let id = granted.sandbox.id.clone();
        let unclaimed = Unclaimed { id: id.clone(), claimed: false, abandoned: self.abandoned.clone() };
        if asking.answer.send(Ok((granted, unclaimed))).is_err() {
            return;
        }
        if let Some(waited) = waited {
            let waited_ms = waited.as_millis() as u64;
            self.events.publish(EventType::SpawnDequeued, Some(&id), self.clock.now(), json!({"waited_ms": waited_ms}));
        }
    }

    /// Returns whether other spawns may still get a place.
    fn denied(&mut self, ticket: Ticket, denial: Denial, room: Room) -> bool {
        if !self.policy.waits_for(denial) {
            self.refuse(ticket, Refused::Denied(denial, room));
            return true;
        }
        if let Some(asking) = self.queue.get_mut(ticket) {
            let since = asking.waits.map(|waits| waits.since);
            // New spawns begin to wait at the end of this round.
            if let Some(since) = since {
                asking.waits = Some(Waits { since, denial, room });
            }
        }
        match denial {
            Denial::MaxSandboxes => {
                self.settle(denial, room);
                false
            }
            Denial::MaxSandboxesPerOwner | Denial::PoolShare => {
                self.settle_one(ticket, denial, room);
                self.queue.hold_owner(ticket, (denial, room));
                true
            }
            Denial::PoolFull => {
                self.settle_one(ticket, denial, room);
                self.queue.hold_kind(ticket, (denial, room));
                true
            }
        }
    }

    fn refuse(&mut self, ticket: Ticket, refused: Refused) {
        if let Some(asking) = self.leave(ticket, |stats| stats.left += 1) {
            let _ = asking.answer.send(Err(refused));
        }
    }

    /// Lets all new spawns wait, or refuses those for which the queue has no place.
    fn settle(&mut self, denial: Denial, room: Room) {
        while let Some(ticket) = self.fresh.pop_front() {
            self.begin_to_wait(ticket, denial, room);
        }
    }

    fn settle_one(&mut self, ticket: Ticket, denial: Denial, room: Room) {
        if let Some(at) = self.fresh.iter().position(|fresh| *fresh == ticket) {
            self.fresh.remove(at);
            self.begin_to_wait(ticket, denial, room);
        }
    }

    /// Lets the new spawns of a finished round wait. They were not tried, since an earlier spawn
    /// was denied for the same reason.
    fn settle_fresh(&mut self) {
        while let Some(ticket) = self.fresh.pop_front() {
            if let Some((denial, room)) = self.queue.why_held(ticket).copied() {
                self.begin_to_wait(ticket, denial, room);
            }
        }
    }

    fn begin_to_wait(&mut self, ticket: Ticket, denial: Denial, room: Room) {
        let Some(asking) = self.queue.get_mut(ticket) else { return };
        if asking.waits.is_some() {
            return;
        }
        let owner = asking.new.sandbox.owner.clone();
        let own = self.waiting_of.get(&owner).copied().unwrap_or(0);
        match self.policy.places.admit(self.waiting, own) {
            Ok(()) => {}
            Err(NoPlace::Queue) => return self.refuse(ticket, Refused::QueueFull(denial, room)),
            Err(NoPlace::Share) => return self.refuse(ticket, Refused::ShareFull(denial, room, own)),
        }
        asking.waits = Some(Waits { since: Instant::now(), denial, room });
        self.waiting += 1;
        self.waiting_of.insert(owner.clone(), own + 1);
        self.count(|stats| stats.queued += 1);
        let data = json!({"reason": denial.as_str(), "depth": self.waiting});
        self.publish(owner.as_ref(), EventType::SpawnQueued, data);
    }
}

/// Waits until `deadline`; for ever if there is none.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod test;
