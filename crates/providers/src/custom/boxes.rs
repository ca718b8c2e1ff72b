//! What this process remembers of boxes. Losing it costs questions, and nothing
//! else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::SandboxId;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// How many requests about one box are under way at once. Per box, so that one
/// whose answers do not come holds up no other.
const AT_ONCE: usize = 64;

/// A sandbox over there that is a box of ours.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Its id over there.
    pub(super) remote: String,
    /// Bounds the requests about it.
    pub(super) permits: Arc<Semaphore>,
}

/// Every box that this process has heard of.
#[derive(Debug, Default)]
pub(super) struct Boxes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<SandboxId, Known>,
    starting: HashMap<SandboxId, Underway>,
    generations: HashMap<SandboxId, u64>,
}

/// A start that is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Underway {
    ended: CancellationToken,
    unwanted: CancellationToken,
    given_up: CancellationToken,
}

impl Underway {
    /// Completes when the start has ended.
    pub(super) fn ended(&self) -> WaitForCancellationFuture<'_> {
        self.ended.cancelled()
    }

    /// Lets the start ask for nothing more; what it has asked for, it waits for.
    pub(super) fn unwant(&self) {
        self.unwanted.cancel();
    }

    /// Lets the start hang up.
    pub(super) fn give_up(&self) {
        self.given_up.cancel();
    }
}

/// The start itself, under way until dropped.
#[derive(Debug)]
pub(super) struct Starting<'a> {
    boxes: &'a Boxes,
    id: SandboxId,
    underway: Underway,
}

impl Starting<'_> {
    /// Whether the box is to be removed already.
    pub(super) fn is_unwanted(&self) -> bool {
        self.underway.unwanted.is_cancelled()
    }

    /// Works until told to give up; `None` then.
    pub(super) async fn unless_given_up<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.underway.given_up.run_until_cancelled(work).await
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.boxes.lock().starting.remove(&self.id);
        self.underway.ended.cancel();
    }
}

impl Boxes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a start, unless one is under way: then what is cancelled at its end.
    pub(super) fn begin(&self, id: &SandboxId) -> Result<Starting<'_>, CancellationToken> {
        let mut state = self.lock();
        if let Some(other) = state.starting.get(id) {
            return Err(other.ended.clone());
        }
        let underway = Underway::default();
        state.starting.insert(id.clone(), underway.clone());
        Ok(Starting { boxes: self, id: id.clone(), underway })
    }

    /// The start of this box that is under way.
    pub(super) fn starting(&self, id: &SandboxId) -> Option<Underway> {
        self.lock().starting.get(id).cloned()
    }

    /// What is remembered of a box.
    pub(super) fn known(&self, id: &SandboxId) -> Option<Known> {
        self.lock().known.get(id).cloned()
    }

    /// Remembers a box.
    pub(super) fn remember(&self, id: &SandboxId, remote: &str) -> Known {
        let mut state = self.lock();
        if let Some(known) = state.known.get(id)
            && known.remote == remote
        {
            return known.clone();
        }
        let known = Known { remote: remote.to_owned(), permits: Arc::new(Semaphore::new(AT_ONCE)) };
        state.known.insert(id.clone(), known.clone());
        known
    }

    /// Forgets a box that has been stopped.
    pub(super) fn forget(&self, id: &SandboxId) {
        let mut state = self.lock();
        state.known.remove(id);
        state.generations.remove(id);
    }

    /// Every box that is remembered.
    pub(super) fn ids(&self) -> Vec<SandboxId> {
        self.lock().known.keys().cloned().collect()
    }

    /// The generation that requests about a box carry.
    pub(super) fn generation(&self, id: &SandboxId) -> Option<u64> {
        self.lock().generations.get(id).copied()
    }

    /// Sets it.
    pub(super) fn set_generation(&self, id: &SandboxId, generation: u64) {
        self.lock().generations.insert(id.clone(), generation);
    }
}
