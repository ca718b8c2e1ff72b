//! The boxes that this process remembers, and starts that are under way. If they are lost, the other service is asked
//! again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::SandboxId;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::Result;

/// The most concurrent requests about one box. The limit is per box, so that slow answers about
/// one box do not delay others.
pub(crate) const AT_ONCE: usize = 64;
/// First pause between two removals while a start is being stopped. Doubles up to
/// [`STOP_PAUSE_MAX`].
const STOP_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two removals.
const STOP_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Boxes that this process knows, each with what it knows of it, and starts that are under way.
#[derive(Debug)]
pub(crate) struct Boxes<K> {
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    known: HashMap<SandboxId, K>,
    starting: HashMap<SandboxId, Underway>,
    generations: HashMap<SandboxId, u64>,
}

impl<K> Default for Boxes<K> {
    fn default() -> Self {
        let state = State { known: HashMap::new(), starting: HashMap::new(), generations: HashMap::new() };
        Self { state: Mutex::new(state) }
    }
}

/// Handle to a start that is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Underway {
    ended: CancellationToken,
    unwanted: CancellationToken,
    given_up: CancellationToken,
}

impl Underway {
    /// Waits until the start has ended.
    fn ended(&self) -> WaitForCancellationFuture<'_> {
        self.ended.cancelled()
    }

    /// Stops the start from sending more requests. It still waits for the answers to those
    /// already sent.
    fn unwant(&self) {
        self.unwanted.cancel();
    }

    /// Makes the start drop its request.
    fn give_up(&self) {
        self.given_up.cancel();
    }
}

/// A start; it counts as under way until dropped.
#[derive(Debug)]
pub(crate) struct Starting<K> {
    boxes: Arc<Boxes<K>>,
    id: SandboxId,
    underway: Underway,
}

impl<K> Starting<K> {
    /// Returns whether the box is to be removed already.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.underway.unwanted.is_cancelled()
    }

    /// Runs `work` until it is done, or returns `None` once the start is given up.
    pub(crate) async fn unless_given_up<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.underway.given_up.run_until_cancelled(work).await
    }
}

impl<K> Drop for Starting<K> {
    fn drop(&mut self) {
        self.boxes.lock().starting.remove(&self.id);
        self.underway.ended.cancel();
    }
}

impl<K> Boxes<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }

    /// Begins a start. If one is under way already, returns a token that is cancelled at its end.
    fn begin(self: &Arc<Self>, id: &SandboxId) -> Result<Starting<K>, CancellationToken> {
        let mut state = self.lock();
        if let Some(other) = state.starting.get(id) {
            return Err(other.ended.clone());
        }
        let underway = Underway::default();
        state.starting.insert(id.clone(), underway.clone());
        Ok(Starting { boxes: Arc::clone(self), id: id.clone(), underway })
    }

    /// Begins a start, after the one that is under way, if any.
    pub(crate) async fn begin_alone(self: &Arc<Self>, id: &SandboxId) -> Starting<K> {
        loop {
            match self.begin(id) {
                Ok(starting) => return starting,
                Err(other) => other.cancelled().await,
            }
        }
    }

    /// Returns the start of this box that is under way, if any.
    pub(crate) fn starting(&self, id: &SandboxId) -> Option<Underway> {
        self.lock().starting.get(id).cloned()
    }

    /// Removes a box by `remove`, repeatedly while a start of it is under way, and gives the start up after `timeout`.
    pub(crate) async fn stop<F: Future<Output = Result<()>> + Send>(
        &self,
        id: &SandboxId,
        timeout: Duration,
        remove: impl Fn() -> F + Send + Sync,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut pause = STOP_PAUSE;
        loop {
            // In this order, so that the search finds a box left by a start that has ended.
            let starting = self.starting(id);
            if let Some(starting) = &starting {
                starting.unwant();
            }
            remove().await?;
            let Some(starting) = starting else { break };
            if Instant::now() >= deadline {
                starting.give_up();
            }
            let _ = tokio::time::timeout(pause, starting.ended()).await;
            pause = (pause * 2).min(STOP_PAUSE_MAX);
        }
        self.forget(id);
        Ok(())
    }

    /// Forgets a box that has been stopped.
    pub(crate) fn forget(&self, id: &SandboxId) {
        let mut state = self.lock();
        state.known.remove(id);
        state.generations.remove(id);
    }

    /// Returns the ids of all remembered boxes.
    pub(crate) fn ids(&self) -> Vec<SandboxId> {
        self.lock().known.keys().cloned().collect()
    }

    /// Returns the lease generation that requests about a box carry.
    pub(crate) fn generation(&self, id: &SandboxId) -> Option<u64> {
        self.lock().generations.get(id).copied()
    }

    pub(crate) fn set_generation(&self, id: &SandboxId, generation: u64) {
        self.lock().generations.insert(id.clone(), generation);
    }
}

impl<K: Clone> Boxes<K> {
    /// Returns what is remembered of a box.
    pub(crate) fn known(&self, id: &SandboxId) -> Option<K> {
        self.lock().known.get(id).cloned()
    }

    /// Remembers what `make` returns of a box, unless what is remembered already `is_same`. Returns what is remembered.
    pub(crate) fn remember_unless(
        &self,
        id: &SandboxId,
        is_same: impl FnOnce(&K) -> bool,
        make: impl FnOnce() -> K,
    ) -> K {
        let mut state = self.lock();
        if let Some(known) = state.known.get(id).filter(|known| is_same(known)) {
            return known.clone();
        }
        let known = make();
        state.known.insert(id.clone(), known.clone());
        known
    }
}
