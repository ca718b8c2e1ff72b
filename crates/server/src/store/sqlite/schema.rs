//! The tables, and how an older file becomes a current one.

use domain::StoreId;
use sqlx::SqlitePool;

use super::{Error, Result};

/// Step n brings a file from `user_version` n to n + 1. Steps are only ever added.
const STEPS: [&str; 1] = ["
CREATE TABLE store (id TEXT NOT NULL);

CREATE TABLE sandboxes (
    id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL,
    provider TEXT NOT NULL,
    image TEXT NOT NULL,
    memory_mb BIGINT NOT NULL,
    vcpus BIGINT NOT NULL,
    disk_mb BIGINT NOT NULL,
    pids BIGINT NOT NULL,
    metadata TEXT NOT NULL,
    owner_id TEXT,
    worker_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    error TEXT,
    stop_reason TEXT
);
CREATE INDEX sandboxes_by_state ON sandboxes (state, created_at);
CREATE INDEX sandboxes_by_expiry ON sandboxes (expires_at) WHERE state IN ('creating', 'running');
CREATE INDEX sandboxes_active_by_owner ON sandboxes (owner_id, state)
    WHERE state IN ('creating', 'running', 'destroying');
CREATE INDEX sandboxes_by_age ON sandboxes (created_at) WHERE state <> 'destroyed';
CREATE INDEX sandboxes_by_end ON sandboxes (ended_at) WHERE state IN ('destroyed', 'failed');

CREATE TABLE templates (
    name TEXT NOT NULL PRIMARY KEY,
    image TEXT,
    provider TEXT,
    memory_mb BIGINT,
    vcpus BIGINT,
    disk_mb BIGINT,
    ttl_ms BIGINT,
    metadata TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
"];

/// Brings the file to the current schema, each step in a transaction.
pub(super) async fn upgrade(writer: &SqlitePool) -> Result<()> {
    let known = STEPS.len() as i64;
    let found: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(writer).await?;
    if found > known {
        return Err(Error::TooNew { found, known });
    }
    for (step, sql) in STEPS.iter().enumerate().skip(usize::try_from(found).unwrap_or(0)) {
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::raw_sql(*sql).execute(&mut *tx).await?;
        let version = format!("PRAGMA user_version = {}", step + 1);
        sqlx::raw_sql(sqlx::AssertSqlSafe(version)).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The store's name: the one it has, else `new`.
pub(super) async fn store_id(writer: &SqlitePool, new: StoreId) -> Result<StoreId> {
    sqlx::query("INSERT INTO store (id) SELECT $1 WHERE NOT EXISTS (SELECT 1 FROM store)")
        .bind(new.as_str())
        .execute(writer)
        .await?;
    let found: String = sqlx::query_scalar("SELECT id FROM store").fetch_one(writer).await?;
    StoreId::parse(&found).ok_or_else(|| Error::Corrupt(format!("store id `{found}`")))
}
