//! Removal of images that no box uses. They go before a box that takes less than they do.

use std::time::Duration;

use images::{Images, Pruned};
use providers::{Chain, DiskUsage};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Pause after a removal that freed nothing.
const PAUSE: Duration = Duration::from_secs(10);

/// Removal of images from one disk.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    under_way: JoinSet<images::Result<Pruned>>,
    not_before: Option<Instant>,
}

impl Eviction {
    /// Begins to remove images from a full disk, if images that no box uses take at least `held`,
    /// the usage of the largest box, of what the disk is short of. Returns whether a removal is
    /// under way.
    pub(super) async fn begin(&mut self, images: &Images, short: impl Fn(DiskUsage) -> u64, held: u64) -> bool {
        if let Some(ended) = self.under_way.try_join_next() {
            let has_removed = match ended {
                Ok(Ok(pruned)) => !pruned.images.is_empty(),
                Ok(Err(error)) => {
                    tracing::warn!(error = %Chain(&error), "cannot remove images from a full disk");
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
        let idle = images.idle_usage().await.map_or(0, short);
        if idle == 0 || idle < held {
            return false;
        }
        let images = images.clone();
        self.under_way.spawn(async move { images.make_room().await });
        true
    }
}
