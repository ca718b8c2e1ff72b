//! Requests that use sandboxes now, and turns to pause them.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SandboxId;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::operation_metrics::Operation;

/// Number of kept turns from which those that are not taken are forgotten.
const TURNS_MAX: usize = 1024;

/// Requests under way, by the id of their sandbox.
#[derive(Debug, Default)]
pub(super) struct InUse {
    uses: Arc<Mutex<HashMap<String, Vec<Operation>>>>,
}

/// A request that uses a sandbox, until it is dropped.
#[derive(Debug)]
pub(super) struct Using {
    uses: Arc<Mutex<HashMap<String, Vec<Operation>>>>,
    id: String,
    operation: Operation,
}

impl InUse {
    /// Begins a use. It has to begin before the state of the sandbox is read: a pause that is stored
    /// later sees it, and one that was stored before is read.
    pub(super) fn begin(&self, id: &str, operation: Operation) -> Using {
        self.uses.lock().entry(id.to_owned()).or_default().push(operation);
        Using { uses: Arc::clone(&self.uses), id: id.to_owned(), operation }
    }

    /// Returns the names of the operations that use a sandbox, each once.
    pub(super) fn of(&self, id: &SandboxId) -> Vec<&'static str> {
        let uses = self.uses.lock();
        let mut names: Vec<&str> =
            uses.get(id.as_str()).into_iter().flatten().map(|operation| operation.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Using {
    /// Has the use last as long as the stream.
    pub(super) fn until_the_end<T: 'static>(self, stream: BoxStream<'static, T>) -> BoxStream<'static, T> {
        let passed_on = stream.map(move |item| {
            let _ = &self;
            item
        });
        passed_on.boxed()
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut uses = self.uses.lock();
        let Some(of_one) = uses.get_mut(&self.id) else { return };
        if let Some(at) = of_one.iter().position(|operation| *operation == self.operation) {
            of_one.swap_remove(at);
        }
        if of_one.is_empty() {
            uses.remove(&self.id);
        }
    }
}

/// Turns to pause and resume sandboxes, one at a time for each.
#[derive(Debug, Default)]
pub(super) struct Turns {
    locks: Mutex<HashMap<SandboxId, Arc<AsyncMutex<()>>>>,
}

impl Turns {
    /// Waits for the turn of a sandbox.
    pub(super) async fn take(&self, id: &SandboxId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            if locks.len() >= TURNS_MAX {
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            Arc::clone(locks.entry(id.clone()).or_default())
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod test {
    use futures_util::stream;

    use super::*;

    #[test]
    fn a_use_lasts_until_its_stream_is_dropped() {
        let (in_use, id) = (InUse::default(), SandboxId::from_entropy([1; 10]));
        let first = in_use.begin(id.as_str(), Operation::FileRead);
        let second = in_use.begin(id.as_str(), Operation::Exec).until_the_end(stream::iter([1, 2]).boxed());
        let third = in_use.begin(id.as_str(), Operation::Exec);
        assert_eq!(in_use.of(&id), ["exec", "file_read"]);
        drop((first, third));
        assert_eq!(in_use.of(&id), ["exec"]);
        drop(second);
        assert!(in_use.of(&id).is_empty() && in_use.uses.lock().is_empty());
    }

    #[tokio::test]
    async fn turns_of_many_sandboxes_are_forgotten_and_a_taken_one_is_not() {
        let turns = Turns::default();
        let id = |n: u16| {
            let mut entropy = [0; 10];
            entropy[..2].copy_from_slice(&n.to_be_bytes());
            SandboxId::from_entropy(entropy)
        };
        let taken = turns.take(&id(0)).await;
        for n in 1..3000 {
            drop(turns.take(&id(n)).await);
        }
        assert!(turns.locks.lock().len() <= TURNS_MAX);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(20), turns.take(&id(0))).await.is_err());
        drop(taken);
        turns.take(&id(0)).await;
    }
}
