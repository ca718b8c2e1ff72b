//! Workers and leases.

use std::time::Duration;

use async_trait::async_trait;
use domain::{Capacity, Lease, LeaseRefused, OwnerId, SandboxId, Timestamp, WorkerId, WorkerStatus};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::super::error::{Error, Result};
use super::super::sandboxes::Sandbox;
use super::super::workers::{Beat, Forgotten, Heartbeat, LeaseCounts, PlacementFilter, WORKERS_MAX, Worker, Workers};
use super::database::Sqlite;
use super::placement;
use super::rows::{self, LEASE_COLUMNS, SANDBOX_COLUMNS, count, lease, ms, words, worker_id};

const WORKER_COLUMNS: &str = "id, hostname, status, providers, capabilities, max_sandboxes, max_sandboxes_per_owner, \
                              last_heartbeat, created_at, updated_at";

fn words_text(words: &[String]) -> String {
    serde_json::to_string(words).expect("a list of strings is JSON")
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn worker(row: &SqliteRow) -> Result<Worker> {
    let status: String = row.try_get("status")?;
    let time = |column| -> Result<Timestamp> { Ok(crate::clock::from_ms(row.try_get(column)?)) };
    Ok(Worker {
        id: worker_id(row.try_get("id")?)?,
        hostname: row.try_get("hostname")?,
        status: WorkerStatus::parse(&status).ok_or_else(|| Error::Corrupt(format!("worker status `{status}`")))?,
        providers: words(row, "providers")?,
        capabilities: words(row, "capabilities")?,
        capacity: Capacity {
            max_sandboxes: count(row.try_get("max_sandboxes")?),
            max_sandboxes_per_owner: count(row.try_get("max_sandboxes_per_owner")?),
        },
        last_heartbeat: time("last_heartbeat")?,
        created_at: time("created_at")?,
        updated_at: time("updated_at")?,
    })
}

#[async_trait]
impl Workers for Sqlite {
    async fn beat(&self, id: &WorkerId, beat: &Heartbeat, now: Timestamp) -> Result<Beat> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        let sql = format!("SELECT {WORKER_COLUMNS}, found_stale FROM workers WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&mut *tx).await?;
        let before = row.as_ref().map(worker).transpose()?;
        let was_stale = row.map(|row| row.try_get::<i64, _>("found_stale")).transpose()?.unwrap_or(0) != 0;
        if before.is_none() {
            let known: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM workers").fetch_one(&mut *tx).await?;
            if count(known) >= WORKERS_MAX {
                return Ok(Beat::Full);
            }
        }
        let status = beat.status.unwrap_or(match &before {
            Some(before) if before.status == WorkerStatus::Draining => WorkerStatus::Draining,
            _ => WorkerStatus::Online,
        });
        let mut after = Worker {
            id: id.clone(),
            hostname: beat.hostname.clone(),
            status,
            providers: beat.providers.clone(),
            capabilities: beat.capabilities.clone(),
            capacity: beat.capacity,
            last_heartbeat: now,
            created_at: before.as_ref().map_or(now, |before| before.created_at),
            updated_at: now,
        };
        if let Some(before) = &before {
            let same = Worker { last_heartbeat: before.last_heartbeat, updated_at: before.updated_at, ..after.clone() };
            if same == *before {
                after.updated_at = before.updated_at;
            }
        }
        let sql = format!(
            "INSERT INTO workers ({WORKER_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
             ON CONFLICT (id) DO UPDATE SET hostname = $2, status = $3, providers = $4, capabilities = $5, \
             max_sandboxes = $6, max_sandboxes_per_owner = $7, last_heartbeat = $8, updated_at = $10, found_stale = 0, \
             unreached = 0"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(after.id.as_str())
            .bind(&after.hostname)
            .bind(after.status.as_str())
            .bind(words_text(&after.providers))
            .bind(words_text(&after.capabilities))
            .bind(number(after.capacity.max_sandboxes))
            .bind(number(after.capacity.max_sandboxes_per_owner))
            .bind(ms(after.last_heartbeat))
            .bind(ms(after.created_at))
            .bind(ms(after.updated_at))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Beat::Heard { worker: Box::new(after), is_news: before.is_none() || was_stale })
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        let sql = format!("SELECT {WORKER_COLUMNS} FROM workers ORDER BY id");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.readers).await?;
        rows.iter().map(worker).collect()
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>> {
        let sql = format!("SELECT {WORKER_COLUMNS} FROM workers WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&self.readers).await?;
        row.map(|row| worker(&row)).transpose()
    }

    async fn place(
        &self,
        provider: &str,
        owner: Option<&OwnerId>,
        now: Timestamp,
        filter: &PlacementFilter,
    ) -> Result<(Option<WorkerId>, u64)> {
        placement::place(&mut *self.readers.acquire().await?, provider, owner, now, filter).await
    }

    async fn place_anew(
        &self,
        id: &SandboxId,
        from: &WorkerId,
        now: Timestamp,
        filter: &PlacementFilter,
    ) -> Result<Option<Sandbox>> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        sqlx::query("UPDATE workers SET unreached = 1 WHERE id = $1").bind(from.as_str()).execute(&mut *tx).await?;
        let placed = placement::place_anew(&mut tx, id, from, now, filter).await?;
        tx.commit().await?;
        Ok(placed)
    }

    async fn forget_worker(&self, id: &WorkerId) -> Result<Forgotten> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        // Every active sandbox has exactly one lease, valid or not.
        let busy: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM leases WHERE holder_id = $1")
            .bind(id.as_str())
            .fetch_one(&mut *tx)
            .await?;
        if busy > 0 {
            return Ok(Forgotten::Busy(count(busy)));
        }
        let done = sqlx::query("DELETE FROM workers WHERE id = $1").bind(id.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(if done.rows_affected() == 1 { Forgotten::Done } else { Forgotten::Missing })
    }

    async fn newly_stale(&self, heard_by: Timestamp) -> Result<Vec<WorkerId>> {
        let ids: Vec<String> = sqlx::query_scalar(
            "UPDATE workers SET found_stale = 1 WHERE found_stale = 0 AND last_heartbeat <= $1 RETURNING id",
        )
        .bind(ms(heard_by))
        .fetch_all(&self.writer)
        .await?;
        ids.iter().map(|id| worker_id(id)).collect()
    }

    async fn renew_lease(
        &self,
        resource: &str,
        holder: &WorkerId,
        now: Timestamp,
        ttl: Duration,
    ) -> Result<std::result::Result<Lease, LeaseRefused>> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        let sql = format!("SELECT {LEASE_COLUMNS} FROM leases WHERE resource_id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(resource).fetch_optional(&mut *tx).await?;
        let found = row.map(|row| lease(&row)).transpose()?;
        let renewed = match Lease::renew(found.as_ref(), holder, now, ttl) {
            Ok(renewed) => renewed,
            Err(refused) => return Ok(Err(refused)),
        };
        let unwanted: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM sandboxes WHERE id = $1 AND state = 'destroying'")
            .bind(resource)
            .fetch_one(&mut *tx)
            .await?;
        if unwanted > 0 {
            return Ok(Err(LeaseRefused::Expired));
        }
        sqlx::query("UPDATE leases SET generation = $1, expires_at = $2 WHERE resource_id = $3")
            .bind(number(renewed.generation))
            .bind(ms(renewed.expires_at))
            .bind(resource)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Ok(renewed))
    }

    async fn renew_own_leases(&self, ending_before: Timestamp, until: Timestamp) -> Result<u64> {
        let done = sqlx::query(
            "UPDATE leases SET generation = generation + 1, expires_at = $1 WHERE holder_id = $2 AND expires_at < $3",
        )
        .bind(ms(until))
        .bind(WorkerId::local().as_str())
        .bind(ms(ending_before))
        .execute(&self.writer)
        .await?;
        Ok(done.rows_affected())
    }

    async fn regrant_leases(&self, ended_after: Timestamp, now: Timestamp, until: Timestamp) -> Result<u64> {
        // `Lease::grant` to the previous holder, for many leases in one statement.
        let done = sqlx::query(
            "UPDATE leases SET generation = generation + 1, expires_at = $1 \
             WHERE expires_at > $2 AND expires_at <= $3 AND holder_id <> 'local' \
             AND EXISTS (SELECT 1 FROM workers WHERE id = holder_id AND last_heartbeat >= expires_at) \
             AND EXISTS (SELECT 1 FROM sandboxes WHERE id = resource_id AND state IN ('creating', 'running', 'paused'))",
        )
        .bind(ms(until))
        .bind(ms(ended_after))
        .bind(ms(now))
        .execute(&self.writer)
        .await?;
        Ok(done.rows_affected())
    }

    async fn lease(&self, resource: &str) -> Result<Option<Lease>> {
        let sql = format!("SELECT {LEASE_COLUMNS} FROM leases WHERE resource_id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(resource).fetch_optional(&self.readers).await?;
        row.map(|row| lease(&row)).transpose()
    }

    async fn lapsed(&self, before: Timestamp, limit: u32) -> Result<Vec<Sandbox>> {
        let sql = format!(
            "SELECT {SANDBOX_COLUMNS} FROM sandboxes WHERE id IN (SELECT resource_id FROM leases \
             WHERE expires_at <= $1 AND holder_id <> 'local' ORDER BY expires_at LIMIT $2) AND state IN ('creating', 'running', 'paused', 'destroying')"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(ms(before)).bind(limit).fetch_all(&self.readers).await?;
        rows.iter().map(rows::sandbox).collect()
    }

    async fn lease_counts(&self, now: Timestamp) -> Result<LeaseCounts> {
        let rows = sqlx::query(
            "SELECT holder_id, COUNT(*) AS leases, COUNT(*) FILTER (WHERE expires_at > $1) AS active FROM leases \
             GROUP BY holder_id",
        )
        .bind(ms(now))
        .fetch_all(&self.readers)
        .await?;
        let mut counts = LeaseCounts::default();
        for row in rows {
            let (leases, active) = (count(row.try_get("leases")?), count(row.try_get("active")?));
            counts.active += active;
            counts.expired += leases - active;
            counts.by_holder.insert(row.try_get("holder_id")?, leases);
        }
        Ok(counts)
    }

    async fn see_generation(&self, id: &SandboxId, generation: u64) -> Result<bool> {
        let seen = async || -> Result<Option<u64>> {
            let seen: Option<i64> = sqlx::query_scalar("SELECT generation FROM held WHERE sandbox_id = $1")
                .bind(id.as_str())
                .fetch_optional(&self.readers)
                .await?;
            Ok(seen.map(count))
        };
        if let Some(seen) = seen().await?
            && generation <= seen
        {
            return Ok(generation == seen);
        }
        let done = sqlx::query(
            "INSERT INTO held (sandbox_id, generation) SELECT id, $2 FROM sandboxes WHERE id = $1 \
             ON CONFLICT (sandbox_id) DO UPDATE SET generation = $2 WHERE generation <= $2",
        )
        .bind(id.as_str())
        .bind(number(generation))
        .execute(&self.writer)
        .await?;
        // Nothing is written for an unknown sandbox, nor for one that has seen a higher
        // generation.
        Ok(done.rows_affected() == 1 || seen().await?.is_none_or(|seen| seen <= generation))
    }

    async fn hold_until(&self, id: &SandboxId, until: Timestamp) -> Result<()> {
        sqlx::query(
            "INSERT INTO held (sandbox_id, generation, lease_until) SELECT id, 0, $2 FROM sandboxes WHERE id = $1 \
             ON CONFLICT (sandbox_id) DO UPDATE SET lease_until = $2",
        )
        .bind(id.as_str())
        .bind(ms(until))
        .execute(&self.writer)
        .await?;
        Ok(())
    }

    async fn held(&self) -> Result<Vec<(Sandbox, Option<Timestamp>)>> {
        let sql = format!(
            "SELECT {SANDBOX_COLUMNS}, lease_until FROM held JOIN sandboxes ON id = sandbox_id \
             WHERE state IN ('creating', 'running', 'paused')"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.readers).await?;
        let read = |row: &SqliteRow| {
            let until: Option<i64> = row.try_get("lease_until")?;
            Ok((rows::sandbox(row)?, until.map(crate::clock::from_ms)))
        };
        rows.iter().map(read).collect()
    }

    async fn lease_expired(&self, before: Timestamp, limit: u32) -> Result<Vec<SandboxId>> {
        let ids: Vec<String> = sqlx::query_scalar(
            "SELECT sandbox_id FROM held JOIN sandboxes ON id = sandbox_id \
             WHERE lease_until <= $1 AND state IN ('creating', 'running', 'paused') LIMIT $2",
        )
        .bind(ms(before))
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        ids.iter().map(|id| rows::sandbox_id(id)).collect()
    }
}
