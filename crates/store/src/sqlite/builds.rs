//! Templates that builds made, and the snapshots that they start from.

use domain::{OwnerId, SnapshotId};

use super::super::error::{Error, Result};
use super::super::templates::{Inserted, Template, TemplateBounds};
use super::connections::Connections;
use super::rows::{TEMPLATE_COLUMNS, count, template};
use super::templates::{insert_row, owner_text};

/// Condition that a row is of a template or of one of its tags.
const OF_TEMPLATE: &str = "owner_id = $1 AND built IS NOT NULL AND (name = $2 OR name BETWEEN $2 || ':' AND $2 || ';')";

pub(super) async fn save(pool: &Connections, saved: &[Template], bounds: TemplateBounds) -> Result<Inserted> {
    let mut writer = pool.acquire().await?;
    let mut tx = writer.begin().await?;
    for new in saved {
        let owner = owner_text(new.owner.as_ref());
        let sql = "SELECT built IS NULL FROM templates WHERE name = $1 AND owner_id = $2";
        let found: Option<bool> = sqlx::query_scalar(sql).bind(&new.name).bind(owner).fetch_optional(&mut *tx).await?;
        if found == Some(true) {
            return Ok(Inserted::Taken);
        }
        sqlx::query("DELETE FROM templates WHERE name = $1 AND owner_id = $2")
            .bind(&new.name)
            .bind(owner)
            .execute(&mut *tx)
            .await?;
        insert_row(&mut tx, new).await?;
        let (rows, rows_of_owner): (i64, i64) =
            sqlx::query_as("SELECT COUNT(*), COALESCE(SUM(owner_id = $1), 0) FROM templates")
                .bind(owner)
                .fetch_one(&mut *tx)
                .await?;
        // What only replaces is no more than there was.
        if found.is_none() && count(rows) > bounds.total {
            return Ok(Inserted::Full);
        }
        if found.is_none() && new.owner.is_some() && count(rows_of_owner) > bounds.per_owner {
            return Ok(Inserted::FullOfOwner);
        }
    }
    tx.commit().await?;
    Ok(Inserted::Done)
}

pub(super) async fn of_name(pool: &Connections, owner: Option<&OwnerId>, name: &str) -> Result<Vec<Template>> {
    let sql = format!("SELECT {TEMPLATE_COLUMNS} FROM templates WHERE {OF_TEMPLATE} ORDER BY name");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(owner_text(owner)).bind(name);
    query.fetch_all(pool).await?.iter().map(template).collect()
}

pub(super) async fn delete(pool: &Connections, owner: Option<&OwnerId>, name: &str) -> Result<u64> {
    let sql = format!("DELETE FROM templates WHERE {OF_TEMPLATE}");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(owner_text(owner)).bind(name);
    Ok(query.execute(pool).await?.rows_affected())
}

pub(super) async fn unused(pool: &Connections) -> Result<Vec<SnapshotId>> {
    let sql = "SELECT id FROM snapshots WHERE of_template AND state = 'ready' AND id NOT IN \
               (SELECT json_extract(built, '$.snapshot') FROM templates WHERE built IS NOT NULL)";
    let ids: Vec<String> = sqlx::query_scalar(sql).fetch_all(pool).await?;
    let parse = |id: String| SnapshotId::parse(&id).map_err(|_| Error::Corrupt(format!("snapshot id `{id}`")));
    ids.into_iter().map(parse).collect()
}
