//! Pause of sandboxes that have not been used for a while.
//!
//! A request, a byte through the proxy of the box, and work of its processes count as use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::SandboxId;
use futures_util::{StreamExt, stream};
use providers::Chain;

use crate::control::error::{Error, Result};
use crate::control::service::Control;
use store::Sandbox;

/// Share of one processor above which processes count as working.
const WORKING_SHARE: f64 = 0.01;
/// Maximum number of sandboxes that are looked at or paused at once.
const AT_ONCE: usize = 16;

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

/// Looks at the sandboxes with an idle time, each since it was last used by a request.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    looks: HashMap<SandboxId, Look>,
}

impl Idle {
    /// Returns the look at a sandbox that has not been used by a request after it.
    fn since(&self, id: &SandboxId, last_use: Instant) -> Option<Look> {
        self.looks.get(id).filter(|look| last_use <= look.at).copied()
    }
}

impl Control {
    /// Pauses the sandboxes that have not been used for as long as they are to be.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn pause_idle(self: &Arc<Self>, idle: &mut Idle) -> Result<()> {
        let running = self.store.with_auto_pause().await?;
        self.pauses.in_use.watch_only(running.iter().map(|sandbox| sandbox.id.as_str()));
        // A provider may take seconds for a look.
        let known = &*idle;
        let looks = stream::iter(running).map(|sandbox| async move {
            let look = self.pause_if_idle(known, &sandbox).await;
            look.map(|look| (sandbox.id, look))
        });
        idle.looks = looks.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
        Ok(())
    }

    /// Pauses a sandbox if it is idle. Returns the look to compare with later; `None` if there is to be
    /// a new one.
    async fn pause_if_idle(self: &Arc<Self>, idle: &Idle, sandbox: &Sandbox) -> Option<Look> {
        let (id, longest) = (&sandbox.id, sandbox.auto_pause?);
        let last_use = self.pauses.in_use.idle_since(id)?;
        let Some(earlier) = idle.since(id, last_use) else { return self.look(sandbox).await };
        // A look may have come late, and then says little.
        if last_use.elapsed() < longest || earlier.at.elapsed() < longest / 2 {
            return Some(earlier);
        }
        let Some(now) = self.look(sandbox).await else { return Some(earlier) };
        if now.shows_use(&earlier) {
            self.pauses.in_use.used(id);
            return None;
        }
        match self.pause_unused(id).await {
            // A request has come, or the sandbox has ended.
            Ok(_) | Err(Error::Conflict(_) | Error::NotFound(..)) => {}
            Err(error) => {
                tracing::info!(%id, error = %Chain(&error), "cannot pause an idle sandbox; trying again later");
                self.pauses.in_use.used(id);
            }
        }
        None
    }

    /// Looks at a sandbox; `None` if what can be measured could not be now.
    async fn look(&self, sandbox: &Sandbox) -> Option<Look> {
        let counts = self.egress.counts_of(&sandbox.id);
        let runtime = self.runtime_of(sandbox).await.ok()?;
        let stats = match runtime.stats(std::slice::from_ref(&sandbox.id)).await {
            Err(providers::Error::NotSupported(_)) => Vec::new(),
            measured => measured.ok()?,
        };
        let stats = stats.into_iter().next().unwrap_or_default();
        let elsewhere = stats.egress.map_or(0, |bytes| bytes.sent + bytes.received);
        let bytes = counts.bytes_sent + counts.bytes_received + elsewhere;
        Some(Look { at: Instant::now(), cpu: stats.cpu, bytes })
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
