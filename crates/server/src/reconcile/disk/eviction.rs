//! Images that no box holds, which go before a box does that takes less.

use std::time::Duration;

use providers::{Chain, images::Pruned};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Disk, Short};

/// How long it is not tried again after it removed nothing.
const PAUSE: Duration = Duration::from_secs(10);

/// The removal of images from one disk.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    under_way: JoinSet<providers::Result<Pruned>>,
    not_before: Option<Instant>,
}

impl Eviction {
    /// Has images removed from a disk that is `short`, where those that no box holds take
    /// as much as the largest box, which holds `held`. Says whether they are going.
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
