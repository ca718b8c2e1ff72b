//! Boxes that this process is making now, which no comparison takes for orphans.

use std::sync::Arc;

use domain::SandboxId;

use super::service::Control;

/// Guard that marks a box as being made by this process, until dropped.
pub(super) struct InProgress {
    control: Arc<Control>,
    id: SandboxId,
}

impl InProgress {
    /// Marks a box as being made.
    pub(super) fn begin(control: &Arc<Control>, id: &SandboxId) -> Self {
        control.in_progress.lock().insert(id.clone(), ());
        Self { control: Arc::clone(control), id: id.clone() }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut in_progress = self.control.in_progress.lock();
        in_progress.remove(&self.id);
        if in_progress.is_empty() {
            self.control.no_spawn.notify_waiters();
        }
    }
}
