//! Deleting what boxes leave, in the background.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::removal;

/// So many folders are deleted at once, so that deleting leaves the disk to others.
const REMOVALS_MAX: usize = 2;

/// Names and paces what is deleted in the background.
#[derive(Debug)]
pub(crate) struct Removals {
    slots: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Removals {
    /// A name in the trash for what was called `name`, which no other provider of
    /// this process has given.
    pub(crate) fn name(name: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        format!("{name}.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// What runs in the background.
    pub(crate) fn tasks(&self) -> TaskTracker {
        self.tasks.clone()
    }

    /// Waits until nothing is being deleted.
    pub(crate) async fn idle(&self) {
        self.tasks.wait().await;
    }

    /// Deletes what lies at `path`, and tells `done` whether all of it has gone.
    pub(crate) fn discard(&self, path: PathBuf, done: impl FnOnce(bool) + Send + 'static) {
        let slots = Arc::clone(&self.slots);
        self.tasks.spawn(async move {
            // The semaphore is never closed.
            let _slot = slots.acquire_owned().await.ok();
            let shown = path.display().to_string();
            let removed = tokio::task::spawn_blocking(move || removal::remove_tree(&path)).await;
            if let Ok(Err(error)) = &removed {
                tracing::warn!(path = shown, %error, "what is left of a box cannot be deleted; the next start tries again");
            }
            done(matches!(removed, Ok(Ok(()))));
        });
    }
}

impl Default for Removals {
    fn default() -> Self {
        let tasks = TaskTracker::new();
        // Closed, a tracker lets others wait for it, and takes new tasks all the same.
        tasks.close();
        Removals { slots: Arc::new(Semaphore::new(REMOVALS_MAX)), tasks }
    }
}
