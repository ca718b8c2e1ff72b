//! Locks by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use domain::SandboxId;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Number of kept locks from which locks that nobody holds are dropped.
const KEPT_MAX: usize = 1024;

/// Locks by key: one task at a time changes what a key stands for.
#[derive(Debug)]
pub(super) struct KeyedLock<K = SandboxId> {
    locks: Mutex<HashMap<K, Arc<AsyncMutex<()>>>>,
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self { locks: Mutex::default() }
    }
}

impl<K: Eq + Hash + Clone> KeyedLock<K> {
    /// Waits for the lock of a key.
    pub(super) async fn take(&self, id: &K) -> OwnedMutexGuard<()> {
        self.of(id).lock_owned().await
    }

    /// Returns the lock of a key; `None` if another task holds it.
    pub(super) fn try_take(&self, id: &K) -> Option<OwnedMutexGuard<()>> {
        self.of(id).try_lock_owned().ok()
    }

    fn of(&self, id: &K) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks.lock();
        if locks.len() >= KEPT_MAX {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        Arc::clone(locks.entry(id.clone()).or_default())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[tokio::test]
    async fn locks_of_many_keys_are_dropped_and_a_held_lock_is_not() {
        let locks = KeyedLock::default();
        let id = |n: u16| {
            let mut entropy = [0; 10];
            entropy[..2].copy_from_slice(&n.to_be_bytes());
            SandboxId::from_entropy(entropy)
        };
        let taken = locks.take(&id(0)).await;
        for n in 1..3000 {
            drop(locks.take(&id(n)).await);
        }
        assert!(locks.locks.lock().len() <= KEPT_MAX);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(20), locks.take(&id(0))).await.is_err());
        drop(taken);
        locks.take(&id(0)).await;
    }
}
