//! Removal of images that no box uses. They go before a box that takes less than they do.

use std::time::Duration;

use providers::{Chain, images::Pruned};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Disk, Short};

/// Pause after a removal that freed nothing.
const PAUSE: Duration = Duration::from_secs(10);

/// Removal of images from one disk.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    under_way: JoinSet<providers::Result<Pruned>>,
    not_before: Option<Instant>,
}

impl Eviction {
    /// Begins to remove images from a disk that is `short`, if images that no box uses take at
    /// least `held`, the usage of the largest box. Returns whether a removal is under way.
    pub(super) async fn begin(&mut self, disk: &Disk, short: Short, held: u64) -> bool {
        let Some(images) = &disk.images else { return false };
        if let Some(ended) = self.under_way.try_join_next() {
            let has_removed = match ended {
                Ok(Ok(pruned)) => !pruned.images.is_empty(),
                Ok(Err(error)) => {
                    tracing::warn!(error = %Chain(&error), "images cannot be removed from a full disk");
                    false
                }
                Err(_) => false,
            };
            self.not_before = (!has_removed).then(|| Instant::now() + PAUSE);
        }
        if !self.under_way.is_empty() {
            return true;
        }
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return false;
        }
        let idle = images.idle_usage().await.map_or(0, |usage| short.of(usage));
        if idle == 0 || idle < held {
            return false;
        }
        let images = images.clone();
        self.under_way.spawn(async move { images.make_room().await });
        true
    }
}
