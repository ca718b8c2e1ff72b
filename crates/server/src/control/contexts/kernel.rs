//! Kernels that this server talks with. What it knows of a kernel may be forgotten: the process in the box keeps it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use domain::SandboxId;
use kernels::Marker;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use super::context::{ContextId, Found, NewContext};
use crate::control::conflict::Conflict;
use crate::control::error::Result;
use crate::control::limit::{Counted, Limit};

/// Most runs that wait for one context.
const WAITING_MAX: usize = 32;
/// Number of kernels from which those that nobody uses are forgotten.
const KEPT_MAX: usize = 1024;

/// Kernels by sandbox and context.
#[derive(Debug, Default)]
pub(in crate::control) struct Kernels {
    kernels: Mutex<HashMap<(SandboxId, ContextId), Arc<Kernel>>>,
}

impl Kernels {
    /// Returns the kernel of a context, which may not run yet.
    pub(super) fn of(&self, sandbox: &SandboxId, id: &ContextId) -> Arc<Kernel> {
        let mut kernels = self.kernels.lock();
        if kernels.len() >= KEPT_MAX {
            kernels.retain(|_, kernel| Arc::strong_count(kernel) > 1);
        }
        Arc::clone(kernels.entry((sandbox.clone(), id.clone())).or_default())
    }

    /// Returns whether a context runs code.
    pub(super) fn is_busy(&self, sandbox: &SandboxId, id: &ContextId) -> bool {
        let kernels = self.kernels.lock();
        kernels.get(&(sandbox.clone(), id.clone())).is_some_and(|kernel| kernel.is_busy.load(Ordering::Relaxed))
    }
}

/// A kernel, as this server sees it.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// Process that runs take turns with, in order of arrival.
    process: Arc<AsyncMutex<Option<Process>>>,
    /// Number of runs that have their turn or wait for it.
    runs: AtomicUsize,
    is_busy: AtomicBool,
    /// The run under way. It is locked while a signal is sent, so that no signal reaches a later run.
    run: AsyncMutex<Option<ActiveRun>>,
    /// Ends the runs that took a place in the queue before.
    ending: Mutex<CancellationToken>,
}

/// Run that is under way.
#[derive(Debug, Default)]
pub(super) struct ActiveRun {
    pub(super) was_interrupted: bool,
}

/// Process of a kernel.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) options: NewContext,
    pub(super) marker: Marker,
    /// Position in its output after what was read.
    pub(super) position: u64,
    /// Number of the next request. The first is random, because a server before may have left one that is not over.
    pub(super) next_run: u64,
}

impl From<Found> for Process {
    fn from(found: Found) -> Self {
        let Found { context, marker, end } = found;
        Self::new(context.process, context.options, marker, end)
    }
}

impl Process {
    pub(super) fn new(number: u64, options: NewContext, marker: Marker, position: u64) -> Self {
        Self { number, options, marker, position, next_run: u64::from(rand::random::<u32>() >> 1) }
    }
}

/// Turn of a run, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) kernel: Arc<Kernel>,
    /// The process; `None` if none is known.
    pub(super) process: OwnedMutexGuard<Option<Process>>,
    /// Ends the run.
    ending: CancellationToken,
    _place: Place,
}

/// Place in the queue of a kernel.
#[derive(Debug)]
struct Place(Arc<Kernel>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.runs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Kernel {
    /// Waits for a turn.
    ///
    /// # Errors
    /// [`Limit::TooMany`] if too many runs wait; [`Conflict::ContextEnded`] if the kernel was ended in between.
    pub(super) async fn turn(self: &Arc<Self>) -> Result<Turn> {
        let ending = self.ending.lock().clone();
        let waiting = self.runs.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(self));
        if waiting > WAITING_MAX {
            return Err(Limit::TooMany { objects: Counted::WaitingRuns, max: WAITING_MAX as u64 }.into());
        }
        let process = Arc::clone(&self.process).lock_owned().await;
        if ending.is_cancelled() {
            return Err(Conflict::ContextEnded.into());
        }
        Ok(Turn { kernel: Arc::clone(self), process, ending, _place: place })
    }

    /// Sends a signal that interrupts the run under way, which lasts at least as long. Returns whether there is one.
    pub(super) async fn interrupt<F: Future<Output = Result<()>>>(&self, send: impl FnOnce() -> F) -> Result<bool> {
        let mut run = self.run.lock().await;
        if let Some(run) = &mut *run {
            run.was_interrupted = true;
        }
        // Also without one: the kernel may be busy with a run that another server began.
        send().await?;
        Ok(run.is_some())
    }

    /// Ends the run under way and those that wait, and takes the turn after them.
    pub(super) async fn turn_after_end(self: &Arc<Self>) -> Result<Turn> {
        std::mem::take(&mut *self.ending.lock()).cancel();
        self.turn().await
    }
}

impl Turn {
    /// Begins a run. The token that is returned ends it.
    pub(super) async fn begin(&self) -> CancellationToken {
        *self.kernel.run.lock().await = Some(ActiveRun::default());
        self.kernel.is_busy.store(true, Ordering::Relaxed);
        self.ending.clone()
    }

    /// Returns whether a request has interrupted the run.
    pub(super) async fn was_interrupted(&self) -> bool {
        self.kernel.run.lock().await.as_ref().is_some_and(|run| run.was_interrupted)
    }

    /// Ends a run. Returns whether it was interrupted.
    pub(super) async fn end(&self) -> bool {
        self.kernel.is_busy.store(false, Ordering::Relaxed);
        self.kernel.run.lock().await.take().is_some_and(|run| run.was_interrupted)
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use kernels::Language;

    use super::*;
    use crate::control::error::Error;

    fn kernel(kernels: &Kernels, n: u8) -> Arc<Kernel> {
        kernels.of(&SandboxId::from_entropy([n; 10]), &ContextId::default_of(Language::Python))
    }

    #[tokio::test]
    async fn runs_take_turns_and_no_more_wait_than_may() {
        let kernel = kernel(&Kernels::default(), 1);
        let first = kernel.turn().await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..WAITING_MAX {
            let kernel = Arc::clone(&kernel);
            waiting.spawn(async move { kernel.turn().await.map(|_| ()) });
        }
        while kernel.runs.load(Ordering::Relaxed) <= WAITING_MAX {
            tokio::task::yield_now().await;
        }
        let refused = kernel.turn().await.unwrap_err();
        assert!(matches!(refused, Error::LimitReached(Limit::TooMany { .. })), "{refused}");
        drop(first);
        while let Some(turn) = waiting.join_next().await {
            turn.unwrap().unwrap();
        }
        assert_eq!(kernel.runs.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn an_interrupt_lasts_no_longer_than_the_run_that_it_is_for() {
        let kernel = kernel(&Kernels::default(), 1);
        assert!(!kernel.interrupt(|| async { Ok(()) }).await.unwrap());
        let turn = kernel.turn().await.unwrap();
        turn.begin().await;
        let (sent, wait) = tokio::sync::oneshot::channel::<()>();
        let other = Arc::clone(&kernel);
        let mut interrupt = tokio::task::JoinSet::new();
        interrupt.spawn(async move {
            other
                .interrupt(|| async {
                    wait.await.expect("is sent");
                    Ok(())
                })
                .await
        });
        tokio::task::yield_now().await;
        let end = turn.end();
        tokio::pin!(end);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut end).await.is_err(), "the signal is on its way");
        sent.send(()).unwrap();
        assert!(end.await, "it was interrupted");
        assert!(interrupt.join_next().await.unwrap().unwrap().unwrap());
    }

    #[tokio::test]
    async fn who_ends_a_kernel_comes_after_the_run_under_way_and_before_none_that_waited() {
        let kernel = kernel(&Kernels::default(), 1);
        let turn = kernel.turn().await.unwrap();
        let token = turn.begin().await;
        let mut waiting = tokio::task::JoinSet::new();
        let waits = Arc::clone(&kernel);
        waiting.spawn(async move { waits.turn().await.map(|_| ()) });
        while kernel.runs.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
        let after = kernel.turn_after_end();
        tokio::pin!(after);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut after).await.is_err(), "the run is under way");
        assert!(token.is_cancelled());
        drop(turn);
        let refused = waiting.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(matches!(refused, Error::Conflict(Conflict::ContextEnded)), "{refused}");
        let turn = after.await.unwrap();
        assert!(!turn.begin().await.is_cancelled(), "runs may begin again");
    }

    #[tokio::test]
    async fn kernels_that_nobody_uses_are_forgotten() {
        let kernels = Kernels::default();
        let used = kernel(&kernels, 1);
        for n in 0..=2 * KEPT_MAX as u16 {
            let mut entropy = [9; 10];
            entropy[..2].copy_from_slice(&n.to_be_bytes());
            kernels.of(&SandboxId::from_entropy(entropy), &ContextId::default_of(Language::Bash));
        }
        assert!(kernels.kernels.lock().len() <= KEPT_MAX);
        assert!(Arc::ptr_eq(&used, &kernel(&kernels, 1)));
    }
}
