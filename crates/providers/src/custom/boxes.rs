//! The remote sandboxes of boxes.

use std::sync::Arc;

use domain::SandboxId;
use tokio::sync::Semaphore;

use crate::service::boxes::{AT_ONCE, Boxes};

/// The remote sandbox of a box.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Id at the remote service.
    pub(super) remote: String,
    /// Limit on concurrent requests about it.
    pub(super) permits: Arc<Semaphore>,
}

impl Boxes<Known> {
    /// Remembers the remote sandbox of a box.
    pub(super) fn remember(&self, id: &SandboxId, remote: &str) -> Known {
        self.remember_unless(
            id,
            |known| known.remote == remote,
            || Known { remote: remote.to_owned(), permits: Arc::new(Semaphore::new(AT_ONCE)) },
        )
    }
}
