//! Inventory and health of each runtime, in tasks of its own: a runtime that does not answer
//! delays no other.

use std::sync::Arc;
use std::time::Duration;

use providers::Chain;

use super::job::interval;
use crate::control::Control;
use crate::control::Kept;
use crate::control::Result;

/// Interval of the inventories.
pub(super) const INVENTORY_EVERY: Duration = Duration::from_secs(5);
/// Interval of the health checks.
const HEALTH_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of boxes that a log line names.
const NAMED_MAX: usize = 5;

/// Compares the boxes of a provider of this server with the stored sandboxes: at intervals, and
/// at once when a request has found a box missing.
pub(super) async fn look_after(control: Arc<Control>, provider: String) {
    let Some(entry) = control.registry().get(&provider) else { return };
    let mut look = interval(INVENTORY_EVERY);
    let mut trouble = Trouble::default();
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = entry.lost_one.notified() => {}
        }
        if trouble.tell(&provider, control.reconcile_provider(&provider).await) {
            entry.in_doubt.notify_one();
        }
    }
}

/// Checks the health of a provider: at intervals, and at once when the outcome of its
/// inventories changes.
pub(super) async fn watch(control: Arc<Control>, provider: String) {
    let Some(entry) = control.registry().get(&provider) else { return };
    let mut check = interval(HEALTH_EVERY);
    loop {
        tokio::select! {
            _ = check.tick() => {}
            () = entry.in_doubt.notified() => {}
        }
        control.test_provider(entry).await;
    }
}

/// Error of the last inventory; each change is logged once.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    said: Option<String>,
}

impl Trouble {
    /// Logs the outcome of an inventory if it differs from the last one. Returns whether it
    /// does.
    pub(super) fn tell(&mut self, runtime: &str, outcome: Result<Vec<Kept>>) -> bool {
        let now = match outcome {
            Err(error) => Some(Chain(&error).to_string()),
            Ok(kept) if kept.is_empty() => None,
            Ok(kept) => Some(in_words(&kept)),
        };
        if now == self.said {
            return false;
        }
        match &now {
            Some(error) => tracing::warn!(runtime, error, "cannot reconcile the boxes of a runtime; trying again"),
            None => tracing::info!(runtime, "the boxes of a runtime can be reconciled again"),
        }
        self.said = now;
        true
    }
}

fn in_words(kept: &[Kept]) -> String {
    let mut named: Vec<String> = kept.iter().map(|(id, error)| format!("{id}: {}", Chain(error))).collect();
    // Removals end in any order.
    named.sort_unstable();
    named.truncate(NAMED_MAX);
    format!("{} boxes cannot be removed ({})", kept.len(), named.join("; "))
}
