//! Background deletion of the remains of boxes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// Most folders deleted at the same time, so that deletion leaves the disk to other work.
const REMOVALS_MAX: usize = 2;

/// Queue of folders to delete in the background.
#[derive(Debug)]
pub(crate) struct Removals {
    slots: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Removals {
    /// Returns a name in the trash for `name`, unique among all providers of this process.
    pub(crate) fn name(name: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        format!("{name}.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the tracker of background work.
    pub(crate) fn tasks(&self) -> TaskTracker {
        self.tasks.clone()
    }

    /// Waits until nothing is being deleted.
    pub(crate) async fn idle(&self) {
        self.tasks.wait().await;
    }

    /// Deletes the tree at `path`, then calls `done` with whether all of it is gone.
    pub(crate) fn discard(&self, path: PathBuf, done: impl FnOnce(bool) + Send + 'static) {
        let slots = Arc::clone(&self.slots);
        self.tasks.spawn(async move {
            // The semaphore is never closed.
            let _slot = slots.acquire_owned().await.ok();
            let shown = path.display().to_string();
            let removed = tokio::task::spawn_blocking(move || host_disk::remove_tree(&path)).await;
            if let Ok(Err(error)) = &removed {
                tracing::warn!(path = shown, %error, "cannot delete the remains of a box; the next start retries");
            }
            done(matches!(removed, Ok(Ok(()))));
        });
    }
}

impl Default for Removals {
    fn default() -> Self {
        let tasks = TaskTracker::new();
        // A closed tracker can be waited for, and still takes new tasks.
        tasks.close();
        Removals { slots: Arc::new(Semaphore::new(REMOVALS_MAX)), tasks }
    }
}
