//! Resources that remote sandboxes use, as the remote service has measured them.

use std::collections::HashMap;
use std::time::Duration;

use client::Filter;
use domain::SandboxId;

use super::labels::{ID_LABEL, STORE_LABEL};
use super::remote::{Remote, is_running};
use crate::{BoxStats, EgressBytes, Error, Result};

const ACTION: &str = "measure a box";

impl Remote {
    /// Measures boxes; see [`crate::Provider::stats`]. One box is a request of its own, since only that
    /// measures the disk; several are one.
    pub(super) async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        if let [id] = ids {
            let known = match self.running(id).await {
                Err(Error::Gone) => return Ok(vec![BoxStats::default()]),
                known => known?,
            };
            let stats = self.within(ACTION, self.client.stats(&known.remote)).await?;
            return Ok(vec![box_stats(&stats)]);
        }
        if ids.iter().any(|id| self.boxes.known(id).is_none()) {
            self.remember_all().await?;
        }
        let filter = Filter { metadata: &[(STORE_LABEL, &self.label)], ..Filter::default() };
        let all = self.within(ACTION, self.client.stats_of_all(&filter)).await?;
        let all: HashMap<&str, &api::SandboxStats> =
            all.iter().map(|stats| (stats.sandbox_id.as_str(), stats)).collect();
        let in_order = ids.iter().map(|id| {
            let stats = self.boxes.known(id).and_then(|known| all.get(known.remote.as_str()).copied());
            stats.map(box_stats).unwrap_or_default()
        });
        Ok(in_order.collect())
    }

    /// Remembers the running sandboxes of all boxes: after a restart none is known.
    async fn remember_all(&self) -> Result<()> {
        for sandbox in self.listed(ACTION, &[(STORE_LABEL, &self.label)]).await? {
            let id = sandbox.metadata.0.get(ID_LABEL).and_then(|id| SandboxId::parse(id).ok());
            if let Some(id) = id.filter(|_| is_running(&sandbox)) {
                self.boxes.remember(&id, &sandbox.id);
            }
        }
        Ok(())
    }
}

fn box_stats(stats: &api::SandboxStats) -> BoxStats {
    BoxStats {
        cpu: stats.cpu.used_ms.map(Duration::from_millis),
        memory_bytes: stats.memory.used_bytes,
        memory_peak_bytes: stats.memory.peak_bytes,
        processes: stats.processes.count,
        disk_bytes: stats.disk.used_bytes,
        egress: stats
            .egress
            .as_ref()
            .map(|bytes| EgressBytes { sent: bytes.sent_bytes, received: bytes.received_bytes }),
    }
}
