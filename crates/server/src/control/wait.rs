//! Waiting for a state of a sandbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{SandboxId, State};
use tokio::sync::{OnceCell, watch};

use super::{Control, Error, Resource, Result, has_expired, lock};
use crate::store::Sandbox;

/// Maximum wait of one request.
pub const WAIT_MAX: Duration = Duration::from_secs(600);

/// States that a request can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// Ready for commands.
    Running,
    /// Completely removed.
    Destroyed,
    /// Ended by a fault.
    Failed,
}

impl WaitFor {
    /// Parses the API's name of a state.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "running" => Some(Self::Running),
            "destroyed" => Some(Self::Destroyed),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Returns `Some(true)` if a sandbox in `state` has reached the target, `None` if it may still
    /// reach it, and `Some(false)` if it never will.
    fn reached(self, state: State) -> Option<bool> {
        use State as S;
        match (self, state) {
            (Self::Running, S::Running) | (Self::Destroyed, S::Destroyed) | (Self::Failed, S::Failed) => Some(true),
            (_, S::Creating) | (Self::Destroyed, _) | (Self::Failed, S::Running) => None,
            (Self::Running, S::Destroying | S::Destroyed | S::Failed)
            | (Self::Failed, S::Destroying | S::Destroyed) => Some(false),
        }
    }
}

/// Waiting requests by sandbox. Each is woken only by a change of its own sandbox's state.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<HashMap<SandboxId, watch::Sender<Look>>>);

/// Row after a change, read once for all requests that wait for the sandbox; `None` if there was
/// none.
type Look = Arc<OnceCell<Option<Arc<Sandbox>>>>;

/// Registration of one waiting request.
#[derive(Debug)]
struct Wait<'a> {
    waits: &'a Waits,
    id: &'a SandboxId,
    looks: watch::Receiver<Look>,
}

impl Waits {
    /// Wakes all requests that wait for the sandbox, after a change of its state.
    pub(super) fn wake(&self, id: &SandboxId) {
        if let Some(looks) = lock(&self.0).get(id) {
            looks.send_replace(Look::default());
        }
    }

    /// Registers a wait for the next change.
    fn begin<'a>(&'a self, id: &'a SandboxId) -> Wait<'a> {
        let mut waits = lock(&self.0);
        let looks = match waits.get(id) {
            Some(looks) => looks.subscribe(),
            None => {
                let (sender, looks) = watch::channel(Look::default());
                waits.insert(id.clone(), sender);
                looks
            }
        };
        Wait { waits: self, id, looks }
    }
}

impl Wait<'_> {
    /// Waits for a change and returns the row that `read` finds after it. Of all waiting
    /// requests, one calls `read` and the others share its result.
    async fn next<R: Future<Output = Result<Option<Sandbox>>>>(
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

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut waits = lock(&self.waits.0);
        if waits.get(self.id).is_some_and(|looks| looks.receiver_count() == 1) {
            waits.remove(self.id);
        }
    }
}

impl Control {
    /// Waits until the sandbox is in the given state.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it does not reach the state within `timeout`, [`Error::Conflict`]
    /// as soon as it never will, [`Error::NotFound`] for an unknown id, and for an expired
    /// sandbox unless the request waits for its end.
    pub async fn wait(&self, id: &str, state: WaitFor, timeout: Duration) -> Result<Sandbox> {
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let parsed = SandboxId::parse(id).map_err(|_| missing())?;
        let reached = async {
            let mut wait = self.waits.begin(&parsed);
            let mut found = self.store.sandbox(&parsed).await?.map(Arc::new);
            loop {
                let sandbox = found.ok_or_else(missing)?;
                if state != WaitFor::Destroyed && has_expired(&sandbox, self.now()) {
                    return Err(missing());
                }
                match state.reached(sandbox.state) {
                    Some(true) => return Ok(Arc::unwrap_or_clone(sandbox)),
                    Some(false) => {
                        return Err(Error::Conflict(format!(
                            "sandbox `{id}` is {} and will never be {}",
                            sandbox.state,
                            match state {
                                WaitFor::Running => "running",
                                WaitFor::Destroyed => "destroyed",
                                WaitFor::Failed => "failed",
                            }
                        )));
                    }
                    None => {
                        // Frees the row for the duration of the wait: a row may be large, and a
                        // wait long.
                        drop(sandbox);
                        found = wait.next(|| async { Ok(self.store.sandbox(&parsed).await?) }).await?;
                    }
                }
            }
        };
        tokio::time::timeout(timeout, reached).await.unwrap_or_else(|_| {
            Err(Error::Timeout(format!(
                "sandbox `{id}` did not reach that state within {}; ask again, or for longer (at most {})",
                domain::format_duration(timeout),
                domain::format_duration(WAIT_MAX)
            )))
        })
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
        let (waits, one, other) = (Waits::default(), id(1), id(2));
        let mut wait = waits.begin(&one);
        waits.wake(&other);
        assert!(wait.next(|| async { Ok(None) }).now_or_never().is_none());
        waits.wake(&one);
        assert!(wait.next(|| async { Ok(None) }).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_thousand_waits_for_one_sandbox_read_its_row_once() {
        let (waits, id, reads) = (Waits::default(), id(1), AtomicUsize::new(0));
        let read = || async {
            reads.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(None)
        };
        let mut all: Vec<_> = (0..1000).map(|_| waits.begin(&id)).collect();
        for round in 1..=3 {
            waits.wake(&id);
            join_all(all.iter_mut().map(|wait| wait.next(read))).await;
            assert_eq!(reads.load(Ordering::Relaxed), round);
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_of_waits_that_are_over() {
        let (waits, id) = (Waits::default(), id(1));
        let (first, second) = (waits.begin(&id), waits.begin(&id));
        drop(first);
        assert_eq!(lock(&waits.0).len(), 1);
        waits.wake(&id);
        drop(second);
        assert!(lock(&waits.0).is_empty());
    }
}
