//! Deadlines that boxes of the warm pool get after their spawns were answered.
//!
//! A box on the shelf ends itself later than its sandbox would, so that it may be given away first. In a
//! burst of spawns the agents would otherwise take as much of the processors as all the rest.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SandboxId;
use parking_lot::Mutex;
use providers::Guest;

/// Sandboxes whose boxes have to get their deadlines, by the rows as they are then.
#[derive(Debug, Default)]
pub(in crate::control) struct LateDeadlines(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    of: HashMap<SandboxId, Arc<dyn Guest>>,
    /// True while a task sets them.
    is_served: bool,
}

impl LateDeadlines {
    /// Adds one. Returns whether a task has to be begun that sets them.
    pub(in crate::control) fn add(&self, id: SandboxId, guest: Arc<dyn Guest>) -> bool {
        let mut waiting = self.0.lock();
        waiting.of.insert(id, guest);
        !std::mem::replace(&mut waiting.is_served, true)
    }

    /// Returns the box of a sandbox that has to get one, until it is removed from here.
    pub(in crate::control) fn of(&self, id: &SandboxId) -> Option<Arc<dyn Guest>> {
        self.0.lock().of.get(id).cloned()
    }

    pub(in crate::control) fn remove(&self, id: &SandboxId) {
        self.0.lock().of.remove(id);
    }

    /// Returns the sandboxes whose boxes have to get one; none ends the task that sets them.
    pub(in crate::control) fn next(&self) -> Vec<SandboxId> {
        let mut waiting = self.0.lock();
        waiting.is_served = !waiting.of.is_empty();
        waiting.of.keys().cloned().collect()
    }
}
