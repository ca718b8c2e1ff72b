//! The audit history: written before an answer is sent, read by the admin.

use std::net::IpAddr;

use domain::Timestamp;

use super::{Control, Result};
use crate::audit::{KEY_REFUSED, Seen, Source};
use crate::store::{AuditEntry, AuditFilter, NewAuditEntry};

impl Control {
    /// Writes a row.
    ///
    /// # Errors
    /// If the store fails; then a change must not be answered as a success.
    pub async fn record_audit(&self, entry: &NewAuditEntry) -> Result<()> {
        self.store.insert_audit(entry).await?;
        Ok(())
    }

    /// Counts a refused key: the first of its source in a minute is written as
    /// `entry`, those after it are added to that row within seconds.
    ///
    /// # Errors
    /// If the store fails; then the next one tries again.
    pub async fn record_refusal(&self, address: Option<IpAddr>, mut entry: NewAuditEntry) -> Result<()> {
        let Seen::First(source) = self.refusals.count(address, entry.created_at) else { return Ok(()) };
        entry.action = KEY_REFUSED.to_owned();
        entry.detail = Some(count_detail(1));
        if source == Source::Others {
            entry.remote_addr = Some("others".to_owned());
        }
        let row = self.store.insert_audit(&entry).await;
        self.refusals.written(source, row.as_ref().ok().copied());
        row?;
        Ok(())
    }

    /// Brings the rows of refused keys up to date.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn tell_refusals(&self) -> Result<()> {
        for (row, count) in self.refusals.take_untold(self.now()) {
            self.store.set_audit_detail(row, &count_detail(count)).await?;
        }
        Ok(())
    }

    /// Rows that `filter` admits and whose id is below `before`, newest first, at
    /// most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn audit(&self, filter: &AuditFilter, before: Option<u64>, limit: u32) -> Result<Vec<AuditEntry>> {
        Ok(self.store.audit(filter, before, limit).await?)
    }

    /// Forgets rows that are too old or too many; how many.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn prune_audit(&self) -> Result<u64> {
        let keep = &self.policy.audit;
        let kept_ms = i64::try_from(keep.retention.as_millis()).unwrap_or(i64::MAX);
        let before: Timestamp = crate::clock::from_ms(self.now().as_millisecond().saturating_sub(kept_ms));
        Ok(self.store.prune_audit(before, keep.entries_max).await?)
    }
}

fn count_detail(count: u64) -> String {
    format!("count={count}")
}
