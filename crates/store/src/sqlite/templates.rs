//! Templates.

use domain::{OwnerId, SpawnOptions, Timestamp};
use sqlx::SqliteConnection;

use super::super::error::Result;
use super::super::templates::{Inserted, Template, TemplateBounds, TemplateCursor, TemplateFilter};
use super::built::built_text;
use super::connections::Connections;
use super::policies::policy_text;
use super::prepare::prepare_text;
use super::rows::{TEMPLATE_COLUMNS, count, metadata_text, ms, template, ttl_ms};

/// Returns the owner as it is in a row: the operator's templates have an empty one.
pub(super) fn owner_text(owner: Option<&OwnerId>) -> &str {
    owner.map_or("", OwnerId::as_str)
}

pub(super) async fn insert(pool: &Connections, new: &Template, bounds: TemplateBounds) -> Result<Inserted> {
    let owner = owner_text(new.owner.as_ref());
    let mut writer = pool.acquire().await?;
    let mut tx = writer.begin().await?;
    let (is_taken, rows, rows_of_owner): (bool, i64, i64) = sqlx::query_as(
        "SELECT EXISTS (SELECT 1 FROM templates WHERE name = $1 AND owner_id = $2), (SELECT COUNT(*) FROM templates), \
         (SELECT COUNT(*) FROM templates WHERE owner_id = $2)",
    )
    .bind(&new.name)
    .bind(owner)
    .fetch_one(&mut *tx)
    .await?;
    if is_taken {
        return Ok(Inserted::Taken);
    }
    if count(rows) >= bounds.total {
        return Ok(Inserted::Full);
    }
    if new.owner.is_some() && count(rows_of_owner) >= bounds.per_owner {
        return Ok(Inserted::FullOfOwner);
    }
    insert_row(&mut tx, new).await?;
    tx.commit().await?;
    Ok(Inserted::Done)
}

/// Inserts a row.
pub(super) async fn insert_row(tx: &mut SqliteConnection, new: &Template) -> Result<()> {
    sqlx::query(
        "INSERT INTO templates (name, image, provider, memory_mb, vcpus, disk_mb, entrypoint, ttl_ms, metadata, \
         egress, auto_pause_ms, prepare, created_at, updated_at, pids, owner_id, built) VALUES ($1, $2, $3, $4, $5, $6, $7, \
         $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
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
    .bind(owner_text(new.owner.as_ref()))
    .bind(built_text(new.built.as_ref()))
    .execute(tx)
    .await?;
    Ok(())
}

pub(super) async fn update(
    pool: &Connections,
    owner: Option<&OwnerId>,
    name: &str,
    options: &SpawnOptions,
    at: Timestamp,
) -> Result<Option<Template>> {
    let sql = format!(
        "UPDATE templates SET image = $1, provider = $2, memory_mb = $3, vcpus = $4, disk_mb = $5, entrypoint = $6, \
         ttl_ms = $7, metadata = $8, egress = $9, auto_pause_ms = $10, prepare = $11, updated_at = $12, pids = $14, built = NULL \
         WHERE name = $13 AND owner_id = $15 RETURNING {TEMPLATE_COLUMNS}"
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
        .bind(owner_text(owner))
        .fetch_optional(pool)
        .await?;
    row.map(|row| template(&row)).transpose()
}

pub(super) async fn get(pool: &Connections, owner: Option<&OwnerId>, name: &str) -> Result<Option<Template>> {
    let sql = format!("SELECT {TEMPLATE_COLUMNS} FROM templates WHERE name = $1 AND owner_id = $2");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(name).bind(owner_text(owner));
    query.fetch_optional(pool).await?.map(|row| template(&row)).transpose()
}

pub(super) async fn usable(pool: &Connections, owner: &OwnerId, name: &str) -> Result<Option<Template>> {
    let sql = format!(
        "SELECT {TEMPLATE_COLUMNS} FROM templates WHERE name = $1 AND owner_id IN ($2, '') \
         ORDER BY owner_id DESC LIMIT 1"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(name).bind(owner.as_str());
    query.fetch_optional(pool).await?.map(|row| template(&row)).transpose()
}

pub(super) async fn list(
    pool: &Connections,
    filter: &TemplateFilter,
    after: Option<&TemplateCursor>,
    limit: u32,
) -> Result<Vec<Template>> {
    let (owner, condition) = match filter {
        TemplateFilter::All => ("", "$4 = ''"),
        TemplateFilter::Of(owner) => (owner.as_str(), "owner_id = $4"),
        TemplateFilter::UsableBy(owner) => (owner.as_str(), "owner_id IN ($4, '')"),
    };
    let sql = format!(
        "SELECT {TEMPLATE_COLUMNS} FROM templates WHERE (name, owner_id) > ($1, $2) AND {condition} \
         ORDER BY name, owner_id LIMIT $3"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(after.map_or("", |after| after.name.as_str()))
        .bind(after.map_or("", |after| owner_text(after.owner.as_ref())))
        .bind(limit)
        .bind(owner);
    query.fetch_all(pool).await?.iter().map(template).collect()
}

pub(super) async fn delete(pool: &Connections, owner: Option<&OwnerId>, name: &str) -> Result<bool> {
    let sql = "DELETE FROM templates WHERE name = $1 AND owner_id = $2";
    let done = sqlx::query(sql).bind(name).bind(owner_text(owner)).execute(pool).await?;
    Ok(done.rows_affected() == 1)
}
