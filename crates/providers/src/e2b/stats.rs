//! Resources that sandboxes use, as the service has measured them.

use domain::SandboxId;

use super::fault::control_fault;
use super::remote::Remote;
use crate::{BoxStats, Error, Result};

impl Remote {
    /// Measures a box; see [`crate::Provider::stats`]. Several are not measured at once: that would be a request for each,
    /// of which the service allows few.
    pub(super) async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        const ACTION: &str = "measure a box";
        let [id] = ids else { return Ok(vec![BoxStats::default(); ids.len()]) };
        let known = match self.running(id).await {
            Err(Error::Gone) => return Ok(vec![BoxStats::default()]),
            known => known?,
        };
        let samples = self.control.metrics(&known.sandbox).await.map_err(|fault| control_fault(ACTION, fault));
        let newest = match samples {
            Err(Error::Gone) => None,
            samples => samples?.into_iter().next_back(),
        };
        let measured = |sample: super::control_plane::Metric| BoxStats {
            memory_bytes: sample.mem_used,
            disk_bytes: sample.disk_used,
            ..BoxStats::default()
        };
        Ok(vec![newest.map(measured).unwrap_or_default()])
    }
}
