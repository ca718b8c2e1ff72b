//! Keys of owners in SQLite.

use async_trait::async_trait;
use domain::{KeyScope, OwnerId, OwnerKeyId, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::super::error::{Error, Result};
use super::super::keys::{KeyInserted, KeyStore, OwnerKey};
use super::database::Sqlite;
use super::rows::{count, ms};
use crate::clock::from_ms;

const COLUMNS: &str = "id, name, owner_id, scopes, hash, prefix, created_at, expires_at, revoked_at, last_used_at";
/// Time from which a key opens nothing.
const ENDS: &str = "MIN(COALESCE(revoked_at, expires_at), COALESCE(expires_at, revoked_at))";

fn key_id(row: &SqliteRow) -> Result<OwnerKeyId> {
    let text: String = row.try_get("id")?;
    OwnerKeyId::parse(&text).ok_or_else(|| Error::Corrupt(format!("key id `{text}`")))
}

fn read(row: &SqliteRow) -> Result<OwnerKey> {
    let corrupt = |column: &str| Error::Corrupt(format!("`{column}` of a key"));
    let time = |column| -> Result<Option<Timestamp>> { Ok(row.try_get::<Option<i64>, _>(column)?.map(from_ms)) };
    let scopes: String = row.try_get("scopes")?;
    let hash: Vec<u8> = row.try_get("hash")?;
    Ok(OwnerKey {
        id: key_id(row)?,
        name: row.try_get("name")?,
        owner: OwnerId::stored(row.try_get("owner_id")?),
        // A scope that this release does not know opens nothing.
        scopes: scopes.split(' ').filter_map(KeyScope::parse).collect(),
        hash: hash.try_into().map_err(|_| corrupt("hash"))?,
        prefix: row.try_get("prefix")?,
        created_at: from_ms(row.try_get("created_at")?),
        expires_at: time("expires_at")?,
        revoked_at: time("revoked_at")?,
        last_used_at: time("last_used_at")?,
    })
}

fn scopes_text(key: &OwnerKey) -> String {
    let names: Vec<&str> = key.scopes.iter().map(KeyScope::as_str).collect();
    names.join(" ")
}

#[async_trait]
impl KeyStore for Sqlite {
    async fn insert_key(&self, new: &OwnerKey, rows_max: u64) -> Result<KeyInserted> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM keys").fetch_one(&mut *tx).await?;
        let mut displaced = None;
        if count(rows) >= rows_max {
            let sql = format!(
                "DELETE FROM keys WHERE id = (SELECT id FROM keys WHERE {ENDS} <= $1 ORDER BY {ENDS}, id LIMIT 1) \
                 RETURNING id"
            );
            let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(ms(new.created_at)).fetch_optional(&mut *tx).await?;
            let Some(row) = row else { return Ok(KeyInserted::Full) };
            displaced = Some(key_id(&row)?);
        }
        let sql = format!("INSERT INTO keys ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)");
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(new.id.as_str())
            .bind(&new.name)
            .bind(new.owner.as_str())
            .bind(scopes_text(new))
            .bind(&new.hash[..])
            .bind(&new.prefix)
            .bind(ms(new.created_at))
            .bind(new.expires_at.map(ms))
            .bind(new.revoked_at.map(ms))
            .bind(new.last_used_at.map(ms))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(KeyInserted::Done { displaced })
    }

    async fn keys(&self, after: Option<&OwnerKeyId>, limit: u32) -> Result<Vec<OwnerKey>> {
        let sql = format!("SELECT {COLUMNS} FROM keys WHERE id > $1 ORDER BY id LIMIT $2");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(after.map_or("", OwnerKeyId::as_str)).bind(limit);
        query.fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    async fn revoke_key(&self, id: &OwnerKeyId, at: Timestamp) -> Result<Option<OwnerKey>> {
        let sql = format!("UPDATE keys SET revoked_at = COALESCE(revoked_at, $1) WHERE id = $2 RETURNING {COLUMNS}");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(ms(at)).bind(id.as_str());
        query.fetch_optional(&self.writer).await?.map(|row| read(&row)).transpose()
    }

    async fn note_key_uses(&self, uses: &[(OwnerKeyId, Timestamp)]) -> Result<()> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        for (id, at) in uses {
            sqlx::query("UPDATE keys SET last_used_at = $1 WHERE id = $2 AND COALESCE(last_used_at, 0) < $1")
                .bind(ms(*at))
                .bind(id.as_str())
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    async fn purge_keys(&self, before: Timestamp) -> Result<Vec<OwnerKeyId>> {
        let sql = format!("DELETE FROM keys WHERE {ENDS} < $1 RETURNING id");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(ms(before));
        query.fetch_all(&self.writer).await?.iter().map(key_id).collect()
    }
}
