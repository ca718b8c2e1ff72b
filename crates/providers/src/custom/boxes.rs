//! The boxes that this process remembers. If they are lost, the remote service is asked again.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SandboxId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// The most concurrent requests about one box. The limit is per box, so that slow answers about
/// one box do not delay others.
const AT_ONCE: usize = 64;

/// The remote sandbox of a box.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Id at the remote service.
    pub(super) remote: String,
    /// Limit on concurrent requests about it.
    pub(super) permits: Arc<Semaphore>,
}

/// Boxes that this process knows, and starts that are under way.
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

/// Handle to a start that is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Underway {
    ended: CancellationToken,
    unwanted: CancellationToken,
    given_up: CancellationToken,
}

impl Underway {
    /// Waits until the start has ended.
    pub(super) fn ended(&self) -> WaitForCancellationFuture<'_> {
        self.ended.cancelled()
    }

    /// Stops the start from sending more requests. It still waits for the answers to those
    /// already sent.
    pub(super) fn unwant(&self) {
        self.unwanted.cancel();
    }

    /// Makes the start drop its request.
    pub(super) fn give_up(&self) {
        self.given_up.cancel();
    }
}

/// A start; it counts as under way until dropped.
#[derive(Debug)]
pub(super) struct Starting {
    boxes: Arc<Boxes>,
    id: SandboxId,
    underway: Underway,
}

impl Starting {
    /// Returns whether the box is to be removed already.
    pub(super) fn is_unwanted(&self) -> bool {
        self.underway.unwanted.is_cancelled()
    }

    /// Runs `work` until it is done, or returns `None` once the start is given up.
    pub(super) async fn unless_given_up<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.underway.given_up.run_until_cancelled(work).await
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.boxes.lock().starting.remove(&self.id);
        self.underway.ended.cancel();
    }
}

impl Boxes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Begins a start. If one is under way already, returns a token that is cancelled at its end.
    fn begin(self: &Arc<Self>, id: &SandboxId) -> Result<Starting, CancellationToken> {
        let mut state = self.lock();
        if let Some(other) = state.starting.get(id) {
            return Err(other.ended.clone());
        }
        let underway = Underway::default();
        state.starting.insert(id.clone(), underway.clone());
        Ok(Starting { boxes: Arc::clone(self), id: id.clone(), underway })
    }

    /// Begins a start, after the one that is under way, if any.
    pub(super) async fn begin_alone(self: &Arc<Self>, id: &SandboxId) -> Starting {
        loop {
            match self.begin(id) {
                Ok(starting) => return starting,
                Err(other) => other.cancelled().await,
            }
        }
    }

    /// Returns the start of this box that is under way, if any.
    pub(super) fn starting(&self, id: &SandboxId) -> Option<Underway> {
        self.lock().starting.get(id).cloned()
    }

    /// Returns the remote sandbox of a box, if it is remembered.
    pub(super) fn known(&self, id: &SandboxId) -> Option<Known> {
        self.lock().known.get(id).cloned()
    }

    /// Remembers the remote sandbox of a box.
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

    /// Returns the ids of all remembered boxes.
    pub(super) fn ids(&self) -> Vec<SandboxId> {
        self.lock().known.keys().cloned().collect()
    }

    /// Returns the lease generation that requests about a box carry.
    pub(super) fn generation(&self, id: &SandboxId) -> Option<u64> {
        self.lock().generations.get(id).copied()
    }

    pub(super) fn set_generation(&self, id: &SandboxId, generation: u64) {
        self.lock().generations.insert(id.clone(), generation);
    }
}
