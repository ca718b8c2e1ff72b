//! Policies on connections out of sandboxes.

use domain::{EgressPolicy, OwnerId, SandboxEgress, SandboxId, WorkerId};
use sqlx::Row;

use super::super::error::Result;
use super::connections::Connections;
use super::policies::{policies, policies_text};
use super::rows;

pub(super) async fn get(pool: &Connections, id: &SandboxId) -> Result<Option<SandboxEgress>> {
    let row = sqlx::query("SELECT egress FROM sandboxes WHERE id = $1").bind(id.as_str()).fetch_optional(pool).await?;
    row.map(|row| policies(row.try_get::<Option<String>, _>("egress")?.as_deref())).transpose()
}

pub(super) async fn set(pool: &Connections, id: &SandboxId, own: EgressPolicy) -> Result<Option<SandboxEgress>> {
    let mut writer = pool.acquire().await?;
    let mut tx = writer.begin().await?;
    let row = sqlx::query("SELECT egress FROM sandboxes WHERE id = $1 AND state IN ('creating', 'running', 'paused')")
        .bind(id.as_str())
        .fetch_optional(&mut *tx)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let before = policies(row.try_get::<Option<String>, _>("egress")?.as_deref())?;
    let after = SandboxEgress { own, ..before };
    sqlx::query("UPDATE sandboxes SET egress = $1 WHERE id = $2")
        .bind(policies_text(&after))
        .bind(id.as_str())
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(Some(after))
}

pub(super) async fn bytes(pool: &Connections, id: &SandboxId) -> Result<u64> {
    let bytes: Option<i64> = sqlx::query_scalar("SELECT egress_bytes FROM sandboxes WHERE id = $1")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await?;
    Ok(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0))
}

pub(super) async fn set_bytes(pool: &Connections, exchanged: &[(SandboxId, u64)]) -> Result<()> {
    let mut writer = pool.acquire().await?;
    let mut tx = writer.begin().await?;
    for (id, bytes) in exchanged {
        sqlx::query("UPDATE sandboxes SET egress_bytes = $1 WHERE id = $2")
            .bind(i64::try_from(*bytes).unwrap_or(i64::MAX))
            .bind(id.as_str())
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(())
}

pub(super) async fn running(pool: &Connections, worker: &WorkerId) -> Result<Vec<(SandboxId, Option<OwnerId>)>> {
    let rows = sqlx::query(
        "SELECT id, owner_id FROM sandboxes WHERE state = 'running' AND egress IS NOT NULL AND worker_id = $1",
    )
    .bind(worker.as_str())
    .fetch_all(pool)
    .await?;
    let owner = |row: &sqlx::sqlite::SqliteRow| -> Result<Option<OwnerId>> {
        Ok(row.try_get::<Option<String>, _>("owner_id")?.map(OwnerId::stored))
    };
    rows.iter().map(|row| Ok((rows::sandbox_id(row.try_get("id")?)?, owner(row)?))).collect()
}
