//! Pause of sandboxes that have not been used for a while.
//!
//! A request, a byte through the proxy of the box, and work of its processes count as use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::SandboxId;
use providers::Chain;

use super::error::{Error, Result};
use super::service::Control;
use crate::store::Sandbox;

/// Share of one processor above which processes count as working.
const WORKING_SHARE: f64 = 0.01;

/// Activity of a box up to a moment.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    /// Processor time since the box was made, where it can be seen.
    cpu: Option<Duration>,
    /// Bytes through the proxy of the box.
    bytes: u64,
}

impl Look {
    /// Returns whether the box did anything since the look `earlier`.
    fn shows_use(&self, earlier: &Look) -> bool {
        let least = self.at.saturating_duration_since(earlier.at).mul_f64(WORKING_SHARE);
        let worked = self.cpu.zip(earlier.cpu).is_some_and(|(now, then)| now.saturating_sub(then) > least);
        worked || self.bytes != earlier.bytes
    }
}

/// Sandboxes with an idle time that were running at the last round, with a look at each since it was
/// last used by a request.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    looks: HashMap<SandboxId, Look>,
}

impl Control {
    /// Pauses the sandboxes that have not been used for as long as they are to be.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn pause_idle(self: &Arc<Self>, idle: &mut Idle) -> Result<()> {
        let running = self.store.with_auto_pause().await?;
        idle.looks.retain(|id, _| running.iter().any(|sandbox| sandbox.id == *id));
        self.in_use.watch_only(running.iter().map(|sandbox| sandbox.id.as_str()));
        for sandbox in running {
            self.pause_if_idle(idle, &sandbox).await;
        }
        Ok(())
    }

    async fn pause_if_idle(self: &Arc<Self>, idle: &mut Idle, sandbox: &Sandbox) {
        let (id, Some(longest)) = (&sandbox.id, sandbox.auto_pause) else { return };
        let since = self.in_use.idle_since(id);
        let known = idle.looks.get(id).filter(|look| since.is_some_and(|since| since <= look.at)).copied();
        let Some(earlier) = known else {
            // The first look since a request has ended; none while one is under way.
            match since {
                Some(_) => idle.looks.insert(id.clone(), self.look(sandbox).await),
                None => idle.looks.remove(id),
            };
            return;
        };
        if since.is_none_or(|since| since.elapsed() < longest) || earlier.at.elapsed() < longest.mul_f64(0.5) {
            return;
        }
        let now = self.look(sandbox).await;
        if now.shows_use(&earlier) {
            self.in_use.used(id);
            idle.looks.insert(id.clone(), now);
            return;
        }
        idle.looks.remove(id);
        match self.pause_unused(id).await {
            // A request has come, or the sandbox has ended.
            Ok(_) | Err(Error::Conflict(_) | Error::NotFound(..)) => {}
            Err(error) => {
                tracing::info!(%id, error = %Chain(&error), "cannot pause an idle sandbox; trying again later");
                self.in_use.used(id);
            }
        }
    }

    async fn look(&self, sandbox: &Sandbox) -> Look {
        let counts = self.egress.counts_of(&sandbox.id);
        let stats = match self.runtime_of(sandbox).await {
            Ok(runtime) => runtime.stats(std::slice::from_ref(&sandbox.id)).await.ok(),
            Err(_) => None,
        };
        let stats = stats.and_then(|stats| stats.into_iter().next()).unwrap_or_default();
        let elsewhere = stats.egress.map_or(0, |bytes| bytes.sent + bytes.received);
        Look { at: Instant::now(), cpu: stats.cpu, bytes: counts.bytes_sent + counts.bytes_received + elsewhere }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn work_and_bytes_are_use_and_the_breath_of_a_sleeping_process_is_none() {
        let start = Look { at: Instant::now(), cpu: Some(Duration::from_secs(9)), bytes: 7 };
        let after = |cpu_ms: u64, bytes| Look {
            at: start.at + Duration::from_secs(10),
            cpu: Some(Duration::from_millis(9000 + cpu_ms)),
            bytes,
        };
        assert!(!after(0, 7).shows_use(&start));
        assert!(!after(99, 7).shows_use(&start));
        assert!(after(101, 7).shows_use(&start));
        assert!(after(0, 8).shows_use(&start));
        assert!(!Look { cpu: None, ..after(0, 7) }.shows_use(&start));
    }
}
