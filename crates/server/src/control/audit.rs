//! The audit history: written before the answer is sent, read by the admin.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::Timestamp;
use providers::Chain;

use super::error::Result;
use super::service::Control;
use super::unavailable::Unavailable;
use crate::audit::{KEY_REFUSED, Seen, Source, Untold};
use store::{AuditEntry, AuditFilter, NewAuditEntry};

/// Number of new rows after which the history is pruned. It exceeds its bound by at most this
/// number.
const PRUNE_AFTER: u64 = 1_000;

impl Control {
    /// Writes a row of the audit history.
    ///
    /// # Errors
    /// If the store fails; the caller must then not report a change as a success.
    pub async fn record_audit(&self, entry: &NewAuditEntry) -> Result<()> {
        self.store.insert_audit(entry).await?;
        // Between two runs of the reconciler, a client can write any number of rows.
        if (self.audit.written.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(PRUNE_AFTER)
            && let Err(error) = self.prune_audit().await
        {
            tracing::warn!(error = %Chain(&error), "cannot prune the audit history; retrying later");
        }
        Ok(())
    }

    /// Counts a refused key. The first refusal of a source in a minute is written as `entry`;
    /// later ones are added to that row within seconds. Goes on if the caller disconnects.
    ///
    /// # Errors
    /// If the store fails; the next refusal then tries again.
    pub async fn record_refusal(self: &Arc<Self>, address: Option<IpAddr>, mut entry: NewAuditEntry) -> Result<()> {
        let first = entry.detail.take().unwrap_or_default();
        let Seen::First(source) = self.audit.refusals.count(address, entry.created_at, &first) else { return Ok(()) };
        entry.action = KEY_REFUSED.to_owned();
        entry.detail = Some(count_detail(1, &first));
        if source == Source::Others {
            entry.remote_addr = Some("others".to_owned());
        }
        let control = Arc::clone(self);
        let written = self.tasks.spawn(async move {
            let row = control.store.insert_audit(&entry).await;
            control.audit.refusals.written(source, row.as_ref().ok().copied());
            row
        });
        match written.await {
            Ok(row) => Ok(row.map(drop)?),
            Err(_) => Err(Unavailable::ShuttingDown.into()),
        }
    }

    /// Writes the current counts of refused keys to their rows.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn flush_refusals(&self) -> Result<()> {
        for Untold { row, count, first } in self.audit.refusals.take_untold(self.now()) {
            self.store.set_audit_detail(row, &count_detail(count, &first)).await?;
        }
        Ok(())
    }

    /// Returns rows that match `filter` and whose id is below `before`, newest first, at most
    /// `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn audit(&self, filter: &AuditFilter, before: Option<u64>, limit: u32) -> Result<Vec<AuditEntry>> {
        Ok(self.store.audit(filter, before, limit).await?)
    }

    /// Deletes rows that are too old or beyond the bound. Returns their number.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn prune_audit(&self) -> Result<u64> {
        let keep = &self.policy.audit;
        let kept_ms = i64::try_from(keep.retention.as_millis()).unwrap_or(i64::MAX);
        let before: Timestamp = store::clock::from_ms(self.now().as_millisecond().saturating_sub(kept_ms));
        Ok(self.store.prune_audit(before, keep.entries_max).await?)
    }
}

fn count_detail(count: u64, first: &str) -> String {
    format!("count={count} {first}").trim_end().to_owned()
}
