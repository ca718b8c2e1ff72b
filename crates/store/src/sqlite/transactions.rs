//! Transactions of the store in SQLite.

use std::collections::BTreeMap;
use std::ops::Range;

use async_trait::async_trait;
use domain::{
    Caps, EgressPolicy, InvalidTransition, OwnerId, Quota, Room, SandboxEgress, SandboxId, SecretName, SnapshotId,
    SpawnOptions, State, StopReason, StoreId, Timestamp, WorkerId,
};
use sqlx::Row;

use super::super::admission::{Admitted, NewSandbox};
use super::super::error::{Error, Result};
use super::super::quotas::{OwnerQuota, QuotaSummary};
use super::super::sandboxes::{Applied, Change, Counts, Cursor, ListFilter, Page, Sandbox};
use super::super::secrets::{NewSecret, StoredSecret};
use super::super::templates::{Inserted, Template, TemplateBounds, TemplateCursor, TemplateFilter};
use super::super::transactions::Store;
use super::database::Sqlite;
use super::rows::{self, SANDBOX_COLUMNS, count, ms, sandbox};
use super::{admission, builds, egress, ended, list, quotas, secrets, templates, terms};

/// Counts kept by triggers, without those by owner, of which there may be many.
pub(super) const COUNTS: &str = "SELECT scope, name, rows FROM counts \
    WHERE scope IN ('active', 'state', 'provider', 'worker') AND rows > 0";

/// Maximum length of a stored failure reason, in characters.
const ERROR_CHARS_MAX: usize = 2_048;

/// Returns whether the change leaves no sandbox for a retry of the request to return.
fn frees_key(change: &Change) -> bool {
    match change {
        Change::Broke { .. } => true,
        Change::StopRequested { reason, .. } => matches!(reason, StopReason::Abandoned | StopReason::Unfinished),
        Change::Started
        | Change::Extended { .. }
        | Change::Paused { .. }
        | Change::Resumed { .. }
        | Change::Stopped { .. } => false,
    }
}

/// Values that a change writes besides the state.
struct Columns {
    expires_at: Option<i64>,
    ended_at: Option<i64>,
    error: Option<String>,
    stop_reason: Option<&'static str>,
}

fn columns(change: &Change) -> Columns {
    let none = Columns { expires_at: None, ended_at: None, error: None, stop_reason: None };
    match change {
        Change::Started => none,
        Change::Paused { until, .. } | Change::Resumed { until } => Columns { expires_at: until.map(ms), ..none },
        Change::Extended { expires_at, .. } => Columns { expires_at: Some(ms(*expires_at)), ..none },
        Change::StopRequested { reason, .. } => Columns { stop_reason: Some(rows::stop_reason(*reason)), ..none },
        Change::Stopped { at } => Columns { ended_at: Some(ms(*at)), ..none },
        Change::Broke { error, at } => {
            Columns { ended_at: Some(ms(*at)), error: Some(error.chars().take(ERROR_CHARS_MAX).collect()), ..none }
        }
    }
}

impl Sqlite {
    /// Stores the start of a box in one statement, since every spawn waits for it; `None` if the sandbox is
    /// not in the state that it comes from.
    async fn started(&self, id: &SandboxId) -> Result<Option<Applied>> {
        let before = State::Creating;
        let Ok(after) = before.after(Change::Started.event()) else { return Ok(None) };
        let sql = format!("UPDATE sandboxes SET state = $1 WHERE id = $2 AND state = $3 RETURNING {SANDBOX_COLUMNS}");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(after.as_str())
            .bind(id.as_str())
            .bind(before.as_str())
            .fetch_optional(&self.writer)
            .await?;
        row.map(|row| Ok(Applied::Done { before, sandbox: Box::new(sandbox(&row)?) })).transpose()
    }
}

#[async_trait]
impl Store for Sqlite {
    fn id(&self) -> &StoreId {
        &self.id
    }

    async fn admit(&self, new: &NewSandbox) -> Result<Admitted> {
        admission::admit(&self.writer, new).await
    }

    async fn admit_together(&self, new: &[&NewSandbox]) -> Result<Vec<bool>> {
        admission::admit_together(&self.writer, new).await
    }

    async fn room(&self, owner: Option<&OwnerId>, caps: Caps) -> Result<Room> {
        admission::room(&mut *self.readers.acquire().await?, owner, caps).await
    }

    async fn keyed(&self, owner: Option<&OwnerId>, key: &str, now: Timestamp) -> Result<Option<(String, SandboxId)>> {
        let row = sqlx::query(
            "SELECT request, sandbox_id FROM idempotency_keys WHERE owner_id = $1 AND key = $2 AND created_at > $3",
        )
        .bind(owner.map_or("", OwnerId::as_str))
        .bind(key)
        .bind(admission::key_ends(now))
        .fetch_optional(&self.readers)
        .await?;
        row.map(|row| Ok((row.try_get("request")?, rows::sandbox_id(&row.try_get::<String, _>("sandbox_id")?)?)))
            .transpose()
    }

    async fn counts(&self) -> Result<Counts> {
        // Bounded: counts by owner, of which there can be any number, are left out.
        let rows = sqlx::query(COUNTS).fetch_all(&self.readers).await?;
        let mut counts = Counts::default();
        for row in rows {
            let (scope, name): (String, String) = (row.try_get("scope")?, row.try_get("name")?);
            let rows = count(row.try_get("rows")?);
            let by = match scope.as_str() {
                "active" => {
                    counts.active = rows;
                    continue;
                }
                "state" => &mut counts.by_state,
                "provider" => &mut counts.by_provider,
                "worker" => &mut counts.by_worker,
                _ => return Err(Error::Corrupt(format!("count `{scope}`"))),
            };
            by.insert(name, rows);
        }
        Ok(counts)
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>> {
        let sql = format!("SELECT {SANDBOX_COLUMNS} FROM sandboxes WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&self.readers).await?;
        row.map(|row| sandbox(&row)).transpose()
    }

    async fn sandboxes(&self, filter: &ListFilter, now: Timestamp) -> Result<Page> {
        let pool = if filter.metadata.is_empty() { &self.readers } else { &self.searches };
        list::page(pool, filter, now).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<SandboxId>> {
        let rows = sqlx::query(
            // By itself SQLite takes the index of states, which leads to every sandbox.
            "SELECT id FROM sandboxes INDEXED BY sandboxes_by_expiry \
             WHERE (state = 'creating' OR state = 'running' OR state = 'paused') AND expires_at <= $1 \
             ORDER BY expires_at LIMIT $2",
        )
        .bind(ms(now))
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| rows::sandbox_id(&row.try_get::<String, _>("id")?)).collect()
    }

    async fn in_state(&self, state: State, after: Option<Cursor>, limit: u32) -> Result<Page> {
        list::in_state(&self.readers, state, after, limit).await
    }

    async fn ids_in(&self, states: &[State], worker: &WorkerId, provider: Option<&str>) -> Result<Vec<SandboxId>> {
        list::ids_in(&self.readers, states, worker, provider).await
    }

    async fn with_auto_pause(&self) -> Result<Vec<Sandbox>> {
        // By itself SQLite takes the index of states, which leads to every running sandbox.
        let sql = format!(
            "SELECT {SANDBOX_COLUMNS} FROM sandboxes INDEXED BY sandboxes_with_auto_pause \
             WHERE state = 'running' AND auto_pause_ms IS NOT NULL"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.readers).await?;
        rows.iter().map(sandbox).collect()
    }

    async fn env(&self, id: &SandboxId) -> Result<BTreeMap<String, String>> {
        terms::env(&self.readers, id).await
    }

    async fn egress(&self, id: &SandboxId) -> Result<Option<SandboxEgress>> {
        egress::get(&self.readers, id).await
    }

    async fn set_egress(&self, id: &SandboxId, own: EgressPolicy) -> Result<Option<SandboxEgress>> {
        egress::set(&self.writer, id, own).await
    }

    async fn egress_bytes(&self, id: &SandboxId) -> Result<u64> {
        egress::bytes(&self.readers, id).await
    }

    async fn set_egress_bytes(&self, exchanged: &[(SandboxId, u64)]) -> Result<()> {
        egress::set_bytes(&self.writer, exchanged).await
    }

    async fn with_egress(&self, worker: &WorkerId) -> Result<Vec<(SandboxId, Option<OwnerId>)>> {
        egress::running(&self.readers, worker).await
    }

    async fn apply(&self, id: &SandboxId, change: Change) -> Result<Applied> {
        if change == Change::Started
            && let Some(started) = self.started(id).await?
        {
            return Ok(started);
        }
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        let sql = format!("SELECT {SANDBOX_COLUMNS} FROM sandboxes WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&mut *tx).await?;
        let Some(row) = row else { return Ok(Applied::Missing) };
        let found = sandbox(&row)?;
        let before = found.state;
        let after = match before.after(change.event()) {
            Ok(after) => after,
            Err(refusal) => return Ok(Applied::Refused(refusal)),
        };
        match change {
            Change::Extended { now, .. } if found.has_expired(now) => return Ok(Applied::Missing),
            Change::Paused { if_over_at: Some(at), .. } if found.expires_at > at => {
                return Ok(Applied::Refused(InvalidTransition { from: before, event: change.event() }));
            }
            Change::StopRequested { reason, now } if !reason.holds(before, found.expires_at <= now) => {
                return Ok(Applied::Refused(InvalidTransition { from: before, event: change.event() }));
            }
            Change::Started
            | Change::Extended { .. }
            | Change::Paused { .. }
            | Change::Resumed { .. }
            | Change::StopRequested { .. }
            | Change::Stopped { .. }
            | Change::Broke { .. } => {}
        }
        let mut columns = columns(&change);
        if let Change::Extended { at_least: true, .. } = change {
            columns.expires_at = columns.expires_at.max(Some(ms(found.expires_at)));
        }
        let sql = format!(
            "UPDATE sandboxes SET state = $1, expires_at = COALESCE($2, expires_at), \
             ended_at = COALESCE(ended_at, $3), error = COALESCE($4, error), \
             stop_reason = COALESCE(stop_reason, $5) WHERE id = $6 RETURNING {SANDBOX_COLUMNS}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(after.as_str())
            .bind(columns.expires_at)
            .bind(columns.ended_at)
            .bind(columns.error)
            .bind(columns.stop_reason)
            .bind(id.as_str())
            .fetch_one(&mut *tx)
            .await?;
        let sandbox = Box::new(sandbox(&row)?);
        if frees_key(&change) {
            sqlx::query("DELETE FROM idempotency_keys WHERE sandbox_id = $1")
                .bind(id.as_str())
                .execute(&mut *tx)
                .await?;
        }
        if before != after {
            ended::make_way(&mut tx, &self.kept, after, sandbox.owner.as_ref()).await?;
        }
        tx.commit().await?;
        Ok(Applied::Done { before, sandbox })
    }

    async fn purge_ended(&self, before: Timestamp, now: Timestamp) -> Result<u64> {
        sqlx::query("DELETE FROM idempotency_keys WHERE created_at <= $1")
            .bind(admission::key_ends(now))
            .execute(&self.writer)
            .await?;
        ended::purge(&self.writer, &self.kept, ms(before)).await
    }

    async fn insert_template(&self, new: &Template, bounds: TemplateBounds) -> Result<Inserted> {
        templates::insert(&self.writer, new, bounds).await
    }

    async fn update_template(
        &self,
        owner: Option<&OwnerId>,
        name: &str,
        options: &SpawnOptions,
        at: Timestamp,
    ) -> Result<Option<Template>> {
        templates::update(&self.writer, owner, name, options, at).await
    }

    async fn template(&self, owner: Option<&OwnerId>, name: &str) -> Result<Option<Template>> {
        templates::get(&self.readers, owner, name).await
    }

    async fn usable_template(&self, owner: &OwnerId, name: &str) -> Result<Option<Template>> {
        templates::usable(&self.readers, owner, name).await
    }

    async fn templates(
        &self,
        filter: &TemplateFilter,
        after: Option<&TemplateCursor>,
        limit: u32,
    ) -> Result<Vec<Template>> {
        templates::list(&self.readers, filter, after, limit).await
    }

    async fn save_built(&self, saved: &[Template], bounds: TemplateBounds) -> Result<Inserted> {
        builds::save(&self.writer, saved, bounds).await
    }

    async fn built_templates(&self, owner: Option<&OwnerId>, name: &str) -> Result<Vec<Template>> {
        builds::of_name(&self.readers, owner, name).await
    }

    async fn delete_built(&self, owner: Option<&OwnerId>, name: &str) -> Result<u64> {
        builds::delete(&self.writer, owner, name).await
    }

    async fn unused_builds(&self) -> Result<Vec<SnapshotId>> {
        builds::unused(&self.readers).await
    }

    async fn delete_template(&self, owner: Option<&OwnerId>, name: &str) -> Result<bool> {
        templates::delete(&self.writer, owner, name).await
    }

    async fn reserve_event_ids(&self, count: u64) -> Result<Range<u64>> {
        let mut writer = self.writer.acquire().await?;
        // Synced before use: ids that were published must not come again, even after a power
        // failure.
        sqlx::raw_sql("PRAGMA synchronous = FULL").execute(&mut *writer).await?;
        let end = sqlx::query_scalar::<_, i64>(
            "INSERT INTO counters (name, value) VALUES ('events', 1 + $1) \
             ON CONFLICT (name) DO UPDATE SET value = value + $1 RETURNING value",
        )
        .bind(i64::try_from(count).unwrap_or(i64::MAX))
        .fetch_all(&mut *writer)
        .await;
        sqlx::raw_sql("PRAGMA synchronous = NORMAL").execute(&mut *writer).await?;
        let end = end?.first().copied().ok_or(sqlx::Error::RowNotFound)?;
        let end = u64::try_from(end).map_err(|_| Error::Corrupt("the counter of event ids".to_owned()))?;
        Ok(end.saturating_sub(count)..end)
    }

    async fn save_quota(
        &self,
        owner: &OwnerId,
        quota: &Quota,
        at: Timestamp,
        rows_max: u64,
    ) -> Result<Option<OwnerQuota>> {
        quotas::save(&self.writer, owner, quota, at, rows_max).await
    }

    async fn quota(&self, owner: &OwnerId) -> Result<Option<OwnerQuota>> {
        quotas::get(&self.readers, owner).await
    }

    async fn quotas(&self, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>> {
        quotas::list(&self.readers, after, limit).await
    }

    async fn quota_summary(&self) -> Result<QuotaSummary> {
        quotas::summary(&self.readers).await
    }

    async fn save_secret(&self, new: &NewSecret, at: Timestamp, rows_max: u64) -> Result<Option<StoredSecret>> {
        secrets::save(&self.writer, new, at, rows_max).await
    }

    async fn secret(&self, name: &SecretName) -> Result<Option<StoredSecret>> {
        secrets::get(&self.readers, name).await
    }

    async fn secrets(&self, after: Option<&SecretName>, limit: u32) -> Result<Vec<StoredSecret>> {
        secrets::list(&self.readers, after, limit).await
    }

    async fn delete_secret(&self, name: &SecretName) -> Result<bool> {
        secrets::delete(&self.writer, name).await
    }

    async fn authority(&self, id: &SandboxId) -> Result<Option<Vec<u8>>> {
        secrets::authority(&self.readers, id).await
    }

    async fn set_authority(&self, id: &SandboxId, sealed: &[u8]) -> Result<Option<Vec<u8>>> {
        secrets::set_authority(&self.writer, id, sealed).await
    }

    async fn delete_quota(&self, owner: &OwnerId) -> Result<bool> {
        quotas::delete(&self.writer, owner).await
    }
}
