//! The audit history in SQLite.

use async_trait::async_trait;
use domain::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite as Engine};

use super::rows::ms;
use super::{Error, Result, Sqlite};
use crate::clock::from_ms;
use crate::store::{AuditEntry, AuditFilter, AuditStore, NewAuditEntry};

/// Rows that one statement forgets: others want to write in between.
const PRUNE_BATCH: u32 = 10_000;

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn entry(row: &SqliteRow) -> Result<AuditEntry> {
    let number = |name: &str| -> Result<u64> {
        u64::try_from(row.try_get::<i64, _>(name)?).map_err(|_| Error::Corrupt(format!("`{name}` of an audit row")))
    };
    Ok(AuditEntry {
        id: number("id")?,
        entry: NewAuditEntry {
            created_at: from_ms(row.try_get("created_at")?),
            actor: row.try_get("actor")?,
            action: row.try_get("action")?,
            method: row.try_get("method")?,
            path: row.try_get("path")?,
            status: u16::try_from(number("status")?).map_err(|_| Error::Corrupt("an audit row's status".to_owned()))?,
            duration_ms: number("duration_ms")?,
            request_id: row.try_get("request_id")?,
            remote_addr: row.try_get("remote_addr")?,
            user_agent: row.try_get("user_agent")?,
            detail: row.try_get("detail")?,
        },
    })
}

#[async_trait]
impl AuditStore for Sqlite {
    async fn insert_audit(&self, new: &NewAuditEntry) -> Result<u64> {
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO audit (created_at, actor, action, method, path, status, duration_ms, request_id, remote_addr, \
             user_agent, detail) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) RETURNING id",
        )
        .bind(ms(new.created_at))
        .bind(&new.actor)
        .bind(&new.action)
        .bind(&new.method)
        .bind(&new.path)
        .bind(new.status)
        .bind(signed(new.duration_ms))
        .bind(&new.request_id)
        .bind(&new.remote_addr)
        .bind(&new.user_agent)
        .bind(&new.detail)
        .fetch_one(&self.writer)
        .await?;
        u64::try_from(id).map_err(|_| Error::Corrupt("the id of an audit row".to_owned()))
    }

    async fn set_audit_detail(&self, id: u64, detail: &str) -> Result<()> {
        sqlx::query("UPDATE audit SET detail = $1 WHERE id = $2")
            .bind(detail)
            .bind(signed(id))
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    async fn audit(&self, filter: &AuditFilter, before: Option<u64>, limit: u32) -> Result<Vec<AuditEntry>> {
        let mut query = QueryBuilder::<Engine>::new("SELECT * FROM audit WHERE id < ");
        query.push_bind(before.map_or(i64::MAX, signed));
        for (column, text) in [("actor", &filter.actor), ("action", &filter.action), ("method", &filter.method)] {
            if let Some(text) = text {
                query.push(" AND ").push(column).push(" = ").push_bind(text);
            }
        }
        if let Some(status) = filter.status {
            query.push(" AND status = ").push_bind(status);
        }
        if let Some(text) = &filter.path {
            // Not LIKE: nothing in the text has a meaning.
            query.push(" AND instr(path, ").push_bind(text).push(") > 0");
        }
        if let Some(since) = filter.since {
            query.push(" AND created_at >= ").push_bind(ms(since));
        }
        if let Some(until) = filter.until {
            query.push(" AND created_at < ").push_bind(ms(until));
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.readers).await?;
        rows.iter().map(entry).collect()
    }

    async fn prune_audit(&self, before: Timestamp, keep: u64) -> Result<u64> {
        let mut pruned = 0;
        loop {
            let done = sqlx::query(
                "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE created_at < $1 \
                 OR id <= (SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET $2) LIMIT $3)",
            )
            .bind(ms(before))
            .bind(signed(keep))
            .bind(PRUNE_BATCH)
            .execute(&self.writer)
            .await?;
            pruned += done.rows_affected();
            if done.rows_affected() < u64::from(PRUNE_BATCH) {
                return Ok(pruned);
            }
        }
    }
}
