//! Requests that wait for a change of a sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SandboxId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OnceCell, watch};

use super::error::{Error, Result};
use store::Sandbox;

/// Waiting requests by sandbox. Each is woken only by a change of its own sandbox's state.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<HashMap<SandboxId, watch::Sender<Look>>>);

/// Row after a change, read once for all requests that wait for the sandbox; `None` if there was
/// none.
type Look = Arc<OnceCell<Option<Arc<Sandbox>>>>;

/// Registration of one waiting request.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    id: &'a SandboxId,
    looks: watch::Receiver<Look>,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, watch::Sender<Look>>> {
        // The map holds no invariant that a panic between two statements could break.
        self.0.lock()
    }

    /// Wakes all requests that wait for the sandbox, after a change of its state.
    pub(super) fn wake(&self, id: &SandboxId) {
        if let Some(looks) = self.lock().get(id) {
            looks.send_replace(Look::default());
        }
    }

    /// Registers a wait for the next change.
    pub(super) fn begin<'a>(&'a self, id: &'a SandboxId) -> Waiter<'a> {
        let mut waiters = self.lock();
        let looks = match waiters.get(id) {
            Some(looks) => looks.subscribe(),
            None => {
                let (sender, looks) = watch::channel(Look::default());
                waiters.insert(id.clone(), sender);
                looks
            }
        };
        Waiter { waiters: self, id, looks }
    }
}

impl Waiter<'_> {
    /// Waits for a change and returns the row that `read` finds after it. Of all waiting
    /// requests, one calls `read` and the others share its result.
    pub(super) async fn next<R: Future<Output = Result<Option<Sandbox>>>>(
        &mut self,
        read: impl FnOnce() -> R,
    ) -> Result<Option<Arc<Sandbox>>> {
        // The sender exists for as long as any wait does.
        let _ = self.looks.changed().await;
        let look = Arc::clone(&self.looks.borrow_and_update());
        let found = look.get_or_try_init(|| async { Ok::<_, Error>(read().await?.map(Arc::new)) }).await?;
        Ok(found.clone())
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiters = self.waiters.lock();
        if waiters.get(self.id).is_some_and(|looks| looks.receiver_count() == 1) {
            waiters.remove(self.id);
        }
    }
}

#[cfg(test)]
mod test {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    fn id(n: u8) -> SandboxId {
        SandboxId::from_entropy([n; 10])
    }

    #[tokio::test]
    async fn a_wait_is_woken_by_its_own_sandbox_only() {
        let (waiters, one, other) = (Waiters::default(), id(1), id(2));
        let mut waiter = waiters.begin(&one);
        waiters.wake(&other);
        assert!(waiter.next(|| async { Ok(None) }).now_or_never().is_none());
        waiters.wake(&one);
        assert!(waiter.next(|| async { Ok(None) }).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_thousand_waits_for_one_sandbox_read_its_row_once() {
        let (waiters, id, reads) = (Waiters::default(), id(1), AtomicUsize::new(0));
        let read = || async {
            reads.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(None)
        };
        let mut all: Vec<_> = (0..1000).map(|_| waiters.begin(&id)).collect();
        for round in 1..=3 {
            waiters.wake(&id);
            join_all(all.iter_mut().map(|waiter| waiter.next(read))).await;
            assert_eq!(reads.load(Ordering::Relaxed), round);
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_of_waits_that_are_over() {
        let (waiters, id) = (Waiters::default(), id(1));
        let (first, second) = (waiters.begin(&id), waiters.begin(&id));
        drop(first);
        assert_eq!(waiters.lock().len(), 1);
        waiters.wake(&id);
        drop(second);
        assert!(waiters.lock().is_empty());
    }
}
