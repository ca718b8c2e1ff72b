//! Owner quotas.

use std::time::Duration;

use domain::{OwnerId, Quota, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::super::error::Result;
use super::super::quotas::{OwnerQuota, QuotaSummary};
use super::connections::Connections;
use super::rows::{count, ms};

const COLUMNS: &str = "owner_id, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, max_memory_mb, max_vcpus, max_disk_mb, \
                       created_at, updated_at";

fn duration_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn read(row: &SqliteRow) -> Result<OwnerQuota> {
    let owner: String = row.try_get("owner_id")?;
    let duration = |column| -> Result<Duration> { Ok(Duration::from_millis(count(row.try_get(column)?))) };
    let size = |column| -> Result<u32> { Ok(u32::try_from(count(row.try_get(column)?)).unwrap_or(u32::MAX)) };
    Ok(OwnerQuota {
        owner: OwnerId::stored(owner),
        quota: Quota {
            max_sandboxes: count(row.try_get("max_sandboxes")?),
            max_ttl: duration("max_ttl_ms")?,
            max_exec_timeout: duration("max_exec_timeout_ms")?,
            max_memory_mb: size("max_memory_mb")?,
            max_vcpus: size("max_vcpus")?,
            max_disk_mb: size("max_disk_mb")?,
        },
        created_at: crate::clock::from_ms(row.try_get("created_at")?),
        updated_at: crate::clock::from_ms(row.try_get("updated_at")?),
    })
}

pub(super) async fn save(
    pool: &Connections,
    owner: &OwnerId,
    quota: &Quota,
    at: Timestamp,
    rows_max: u64,
) -> Result<Option<OwnerQuota>> {
    let sql = format!(
        "INSERT INTO quotas ({COLUMNS}) SELECT $1, $2, $3, $4, $6, $7, $8, $5, $5 \
         WHERE (SELECT COUNT(*) FROM quotas) < $9 OR EXISTS (SELECT 1 FROM quotas WHERE owner_id = $1) \
         ON CONFLICT (owner_id) DO UPDATE SET \
         max_sandboxes = $2, max_ttl_ms = $3, max_exec_timeout_ms = $4, max_memory_mb = $6, max_vcpus = $7, \
         max_disk_mb = $8, updated_at = $5 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(owner.as_str())
        .bind(i64::try_from(quota.max_sandboxes).unwrap_or(i64::MAX))
        .bind(duration_ms(quota.max_ttl))
        .bind(duration_ms(quota.max_exec_timeout))
        .bind(ms(at))
        .bind(i64::from(quota.max_memory_mb))
        .bind(i64::from(quota.max_vcpus))
        .bind(i64::from(quota.max_disk_mb))
        .bind(i64::try_from(rows_max).unwrap_or(i64::MAX))
        .fetch_optional(pool)
        .await?;
    row.map(|row| read(&row)).transpose()
}

pub(super) async fn get(pool: &Connections, owner: &OwnerId) -> Result<Option<OwnerQuota>> {
    let sql = format!("SELECT {COLUMNS} FROM quotas WHERE owner_id = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(owner.as_str()).fetch_optional(pool).await?;
    row.map(|row| read(&row)).transpose()
}

pub(super) async fn list(pool: &Connections, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>> {
    let sql = format!("SELECT {COLUMNS} FROM quotas WHERE owner_id > $1 ORDER BY owner_id LIMIT $2");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(after.map_or("", OwnerId::as_str)).bind(limit);
    let rows = query.fetch_all(pool).await?;
    rows.iter().map(read).collect()
}

pub(super) async fn summary(pool: &Connections) -> Result<QuotaSummary> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS total, COUNT(*) FILTER (WHERE max_sandboxes > 0) AS max_sandboxes, \
         COUNT(*) FILTER (WHERE max_ttl_ms > 0) AS max_ttl, \
         COUNT(*) FILTER (WHERE max_exec_timeout_ms > 0) AS max_exec_timeout FROM quotas",
    )
    .fetch_one(pool)
    .await?;
    Ok(QuotaSummary {
        total: count(row.try_get("total")?),
        with_max_sandboxes: count(row.try_get("max_sandboxes")?),
        with_max_ttl: count(row.try_get("max_ttl")?),
        with_max_exec_timeout: count(row.try_get("max_exec_timeout")?),
    })
}

pub(super) async fn delete(pool: &Connections, owner: &OwnerId) -> Result<bool> {
    let done = sqlx::query("DELETE FROM quotas WHERE owner_id = $1").bind(owner.as_str()).execute(pool).await?;
    Ok(done.rows_affected() == 1)
}
