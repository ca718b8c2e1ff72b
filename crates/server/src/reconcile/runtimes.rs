//! What each runtime holds, and how it is. One task for each: one that does not
//! answer holds up itself alone.

use std::sync::Arc;
use std::time::Duration;

use providers::Chain;

use super::interval;
use crate::control::{Control, Kept, Result};

/// How often runtimes are asked what they hold.
pub(super) const INVENTORY_EVERY: Duration = Duration::from_secs(5);
/// How often providers are asked how they are.
const HEALTH_EVERY: Duration = Duration::from_secs(30);
/// The boxes that a line of the log names.
const NAMED_MAX: usize = 5;

/// Compares again and again what a provider of this server holds with what is
/// stored, at once when a request has missed a box.
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

/// Asks a provider again and again how it is, at once when it behaves otherwise
/// than it has said.
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

/// What stood in the way of the last look; each change is said once.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    said: Option<String>,
}

impl Trouble {
    /// Says how a look ended; whether that is otherwise than before.
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
            Some(error) => tracing::warn!(runtime, error, "cannot put right what a runtime holds; trying again"),
            None => tracing::info!(runtime, "what a runtime holds is as it should be again"),
        }
        self.said = now;
        true
    }
}

fn in_words(kept: &[Kept]) -> String {
    let named = kept.iter().take(NAMED_MAX).map(|(id, error)| format!("{id}: {}", Chain(error)));
    let named: Vec<String> = named.collect();
    format!("{} boxes cannot be removed ({})", kept.len(), named.join("; "))
}
