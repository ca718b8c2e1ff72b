//! Removal of boxes, separately for each runtime: one that does not answer does not delay
//! removals of the others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{SandboxId, WorkerId};
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::json;
use tokio::task::JoinSet;

use crate::control::Control;
use crate::control::Sandbox;

/// Pause before the second attempt to remove a box; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Maximum pause between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Time after which a failure is forgotten if no attempt follows that is due.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of concurrent removals of one runtime.
const AT_ONCE: usize = 16;
/// Time to wait for a removal before the next one begins; the removal itself goes on.
const PATIENCE: Duration = Duration::from_secs(2);

/// A sandbox in state `destroying`.
#[derive(Debug)]
pub(super) struct Doomed {
    pub(super) sandbox: Sandbox,
    /// Action to publish after its removal, if any.
    pub(super) action: Option<&'static str>,
}

/// A worker, and a provider of it.
type Runtime = (WorkerId, String);

/// Removals under way.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// One task for each runtime with boxes to remove. A task returns the ids of the boxes that
    /// are not removed yet.
    tasks: JoinSet<(Runtime, Vec<SandboxId>)>,
    busy: HashSet<Runtime>,
    backoff: Backoff,
}

impl Removals {
    /// Takes the outcomes of tasks that have ended, and forgets old failures.
    pub(super) fn update(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            self.take(ended);
        }
        self.backoff.forget_old(Instant::now());
    }

    /// Returns whether the sandbox's removal may be attempted now.
    pub(super) fn is_due(&self, sandbox: &Sandbox) -> bool {
        !self.busy.contains(&runtime_of(sandbox)) && self.backoff.is_due(&sandbox.id, Instant::now())
    }

    /// Begins removals. Those of a runtime whose task is still busy are left to the next round.
    pub(super) fn begin(&mut self, control: &Arc<Control>, doomed: Vec<Doomed>) {
        let mut runtimes: HashMap<Runtime, Vec<Doomed>> = HashMap::new();
        for one in doomed {
            runtimes.entry(runtime_of(&one.sandbox)).or_default().push(one);
        }
        for (runtime, doomed) in runtimes {
            if self.busy.insert(runtime.clone()) {
                let control = Arc::clone(control);
                self.tasks.spawn(async move { (runtime, remove_all(&control, doomed).await) });
            }
        }
    }

    /// Waits until no removal is under way.
    #[cfg(test)]
    pub(super) async fn ended(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            self.take(ended);
        }
    }

    fn take(&mut self, ended: Result<(Runtime, Vec<SandboxId>), tokio::task::JoinError>) {
        match ended {
            Ok((runtime, failed)) => {
                self.busy.remove(&runtime);
                let now = Instant::now();
                failed.into_iter().for_each(|id| self.backoff.failed(id, now));
            }
            // A panic is passed on, and ends the reconciler.
            Err(error) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

fn runtime_of(sandbox: &Sandbox) -> Runtime {
    (sandbox.worker.clone(), sandbox.provider.clone())
}

/// Removes boxes of one runtime. Returns the ids of those that are not removed yet.
async fn remove_all(control: &Arc<Control>, doomed: Vec<Doomed>) -> Vec<SandboxId> {
    let removed = stream::iter(doomed).map(|one| remove(control, one)).buffer_unordered(AT_ONCE);
    removed.filter_map(std::future::ready).collect().await
}

/// Removes one box. Returns its id if that failed or takes longer.
async fn remove(control: &Arc<Control>, Doomed { sandbox, action }: Doomed) -> Option<SandboxId> {
    match tokio::time::timeout(PATIENCE, control.remove(&sandbox)).await {
        Ok(Ok(())) => {
            if let Some(action) = action {
                control.publish_action(action, Some(&sandbox.id), json!({"provider": sandbox.provider}));
            }
            None
        }
        // One that takes longer goes on, and is found in `removing`. It may fail as well.
        Ok(Err(_)) | Err(_) => Some(sandbox.id),
    }
}

/// Times of the next attempts after failures. Losing them costs one attempt each.
#[derive(Debug, Default)]
struct Backoff {
    tries: HashMap<SandboxId, (Duration, Instant)>,
}

impl Backoff {
    fn is_due(&self, id: &SandboxId, now: Instant) -> bool {
        self.tries.get(id).is_none_or(|(_, next)| *next <= now)
    }

    fn failed(&mut self, id: SandboxId, now: Instant) {
        let pause = self.tries.get(&id).map_or(RETRY_MIN, |(pause, _)| (*pause * 2).min(RETRY_MAX));
        self.tries.insert(id, (pause, now + pause));
    }

    /// Forgets attempts that were not repeated when they were due, for example because the
    /// sandbox is gone.
    fn forget_old(&mut self, now: Instant) {
        self.tries.retain(|_, (_, next)| now < *next + FORGOTTEN_AFTER);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn tries_to_remove_become_rarer_and_are_forgotten() {
        let a = SandboxId::from_entropy([1; 10]);
        let start = Instant::now();
        let mut backoff = Backoff::default();
        assert!(backoff.is_due(&a, start));
        backoff.failed(a.clone(), start);
        assert!(!backoff.is_due(&a, start + RETRY_MIN / 2));
        assert!(backoff.is_due(&a, start + RETRY_MIN));
        for _ in 0..20 {
            backoff.failed(a.clone(), start);
        }
        assert!(!backoff.is_due(&a, start + RETRY_MAX / 2));
        assert!(backoff.is_due(&a, start + RETRY_MAX));
        backoff.forget_old(start + RETRY_MAX);
        assert!(!backoff.tries.is_empty());
        backoff.forget_old(start + RETRY_MAX + FORGOTTEN_AFTER);
        assert!(backoff.tries.is_empty());
    }
}
