//! Templates.

use domain::{SpawnOptions, Timestamp};

use super::super::error::Result;
use super::super::templates::{Inserted, Template};
use super::connections::Connections;
use super::policies::policy_text;
use super::prepare::prepare_text;
use super::rows::{TEMPLATE_COLUMNS, count, metadata_text, ms, template, ttl_ms};

pub(super) async fn insert(pool: &Connections, new: &Template, rows_max: u64) -> Result<Inserted> {
    let mut writer = pool.acquire().await?;
    let mut tx = writer.begin().await?;
    let (is_taken, rows): (bool, i64) =
        sqlx::query_as("SELECT EXISTS (SELECT 1 FROM templates WHERE name = $1), (SELECT COUNT(*) FROM templates)")
            .bind(&new.name)
            .fetch_one(&mut *tx)
            .await?;
    if is_taken {
        return Ok(Inserted::Taken);
    }
    if count(rows) >= rows_max {
        return Ok(Inserted::Full);
    }
    sqlx::query(
        "INSERT INTO templates (name, image, provider, memory_mb, vcpus, disk_mb, entrypoint, ttl_ms, metadata, \
         egress, auto_pause_ms, prepare, created_at, updated_at, pids) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, \
         $11, $12, $13, $14, $15)",
    )
    .bind(&new.name)
    .bind(&new.options.image)
    .bind(&new.options.provider)
    .bind(new.options.size.memory_mb)
    .bind(new.options.size.vcpus)
    .bind(new.options.size.disk_mb)
    .bind(new.options.entrypoint)
    .bind(ttl_ms(new.options.ttl))
    .bind(metadata_text(&new.options.metadata))
    .bind(policy_text(new.options.egress.as_ref()))
    .bind(ttl_ms(new.options.auto_pause))
    .bind(prepare_text(new.options.prepare.as_deref()))
    .bind(ms(new.created_at))
    .bind(ms(new.updated_at))
    .bind(new.options.size.pids)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(Inserted::Done)
}

pub(super) async fn update(
    pool: &Connections,
    name: &str,
    options: &SpawnOptions,
    at: Timestamp,
) -> Result<Option<Template>> {
    let sql = format!(
        "UPDATE templates SET image = $1, provider = $2, memory_mb = $3, vcpus = $4, disk_mb = $5, entrypoint = $6, \
         ttl_ms = $7, metadata = $8, egress = $9, auto_pause_ms = $10, prepare = $11, updated_at = $12, pids = $14 \
         WHERE name = $13 RETURNING {TEMPLATE_COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(&options.image)
        .bind(&options.provider)
        .bind(options.size.memory_mb)
        .bind(options.size.vcpus)
        .bind(options.size.disk_mb)
        .bind(options.entrypoint)
        .bind(ttl_ms(options.ttl))
        .bind(metadata_text(&options.metadata))
        .bind(policy_text(options.egress.as_ref()))
        .bind(ttl_ms(options.auto_pause))
        .bind(prepare_text(options.prepare.as_deref()))
        .bind(ms(at))
        .bind(name)
        .bind(options.size.pids)
        .fetch_optional(pool)
        .await?;
    row.map(|row| template(&row)).transpose()
}

pub(super) async fn get(pool: &Connections, name: &str) -> Result<Option<Template>> {
    let sql = format!("SELECT {TEMPLATE_COLUMNS} FROM templates WHERE name = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(name).fetch_optional(pool).await?;
    row.map(|row| template(&row)).transpose()
}

pub(super) async fn list(pool: &Connections, after: Option<&str>, limit: u32) -> Result<Vec<Template>> {
    let sql = format!("SELECT {TEMPLATE_COLUMNS} FROM templates WHERE name > $1 ORDER BY name LIMIT $2");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(after.unwrap_or("")).bind(limit);
    query.fetch_all(pool).await?.iter().map(template).collect()
}

pub(super) async fn delete(pool: &Connections, name: &str) -> Result<bool> {
    let done = sqlx::query("DELETE FROM templates WHERE name = $1").bind(name).execute(pool).await?;
    Ok(done.rows_affected() == 1)
}
