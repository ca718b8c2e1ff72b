//! The transactions about shared boxes.

use async_trait::async_trait;
use domain::{Resources, SandboxId, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::rows::{ms, sandbox_id};
use super::{ACTIVE, Result, Sqlite};
use crate::store::{Pool, PoolBounds, PoolCounts, PoolHost, Wanted};

const HOST_COLUMNS: &str = "h.id, h.state, h.provider, h.image, h.memory_mb, h.vcpus, h.disk_mb, h.pids, h.places";
/// It takes new slots.
const OPEN: &str = "open";
/// It is being removed.
const CLOSED: &str = "closed";

fn host(row: &SqliteRow) -> Result<PoolHost> {
    Ok(PoolHost {
        id: sandbox_id(&row.try_get::<String, _>("id")?)?,
        is_open: row.try_get::<String, _>("state")? == OPEN,
        provider: row.try_get("provider")?,
        image: row.try_get("image")?,
        resources: Resources {
            memory_mb: row.try_get("memory_mb")?,
            vcpus: row.try_get("vcpus")?,
            disk_mb: row.try_get("disk_mb")?,
            pids: row.try_get("pids")?,
        },
        places: row.try_get("places")?,
    })
}

async fn placed(connection: &mut sqlx::SqliteConnection, slot: &SandboxId) -> Result<Option<PoolHost>> {
    let sql = format!("SELECT {HOST_COLUMNS} FROM pool_hosts h JOIN pool_slots s ON s.host_id = h.id WHERE s.id = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(slot.as_str()).fetch_optional(connection).await?;
    row.map(|row| host(&row)).transpose()
}

#[async_trait]
impl Pool for Sqlite {
    async fn place(
        &self,
        wanted: &Wanted<'_>,
        bounds: PoolBounds,
        new_host: &SandboxId,
        at: Timestamp,
    ) -> Result<Option<PoolHost>> {
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        if let Some(found) = placed(&mut tx, wanted.slot).await? {
            return Ok(Some(found));
        }
        let size = wanted.resources;
        let sql = format!(
            "SELECT {HOST_COLUMNS}, (SELECT COUNT(*) FROM pool_slots s WHERE s.host_id = h.id) AS taken \
             FROM pool_hosts h WHERE h.state = '{OPEN}' AND h.provider = $1 AND h.image = $2 AND h.memory_mb = $3 \
             AND h.vcpus = $4 AND h.disk_mb = $5 AND h.pids = $6 \
             AND (SELECT COUNT(*) FROM pool_slots s WHERE s.host_id = h.id) < h.places \
             AND (SELECT COUNT(*) FROM pool_slots s WHERE s.host_id = h.id) < $7 \
             ORDER BY taken DESC, h.created_at, h.id LIMIT 1"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(wanted.provider)
            .bind(wanted.image)
            .bind(size.memory_mb)
            .bind(size.vcpus)
            .bind(size.disk_mb)
            .bind(size.pids)
            .bind(bounds.places)
            .fetch_optional(&mut *tx)
            .await?;
        let found = match row {
            Some(row) => host(&row)?,
            None => {
                let hosts: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM pool_hosts").fetch_one(&mut *tx).await?;
                if hosts >= i64::from(bounds.hosts_max) {
                    return Ok(None);
                }
                let made = PoolHost {
                    id: new_host.clone(),
                    is_open: true,
                    provider: wanted.provider.to_owned(),
                    image: wanted.image.to_owned(),
                    resources: size,
                    places: bounds.places,
                };
                sqlx::query(
                    "INSERT INTO pool_hosts (id, state, provider, image, memory_mb, vcpus, disk_mb, pids, places, \
                     created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                )
                .bind(made.id.as_str())
                .bind(OPEN)
                .bind(&made.provider)
                .bind(&made.image)
                .bind(size.memory_mb)
                .bind(size.vcpus)
                .bind(size.disk_mb)
                .bind(size.pids)
                .bind(made.places)
                .bind(ms(at))
                .execute(&mut *tx)
                .await?;
                made
            }
        };
        sqlx::query("INSERT INTO pool_slots (id, host_id) VALUES ($1, $2)")
            .bind(wanted.slot.as_str())
            .bind(found.id.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Some(found))
    }

    async fn host_of(&self, slot: &SandboxId) -> Result<Option<PoolHost>> {
        placed(&mut *self.readers.acquire().await?, slot).await
    }

    async fn leave(&self, slot: &SandboxId) -> Result<Option<SandboxId>> {
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let row = sqlx::query("DELETE FROM pool_slots WHERE id = $1 RETURNING host_id")
            .bind(slot.as_str())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let host = sandbox_id(&row.try_get::<String, _>("host_id")?)?;
        let closed = sqlx::query(
            "UPDATE pool_hosts SET state = $1 WHERE id = $2 AND NOT EXISTS (SELECT 1 FROM pool_slots WHERE host_id = $2)",
        )
        .bind(CLOSED)
        .bind(host.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok((closed.rows_affected() == 1).then_some(host))
    }

    async fn forget_host(&self, host: &SandboxId) -> Result<()> {
        sqlx::query("DELETE FROM pool_hosts WHERE id = $1 AND state = $2")
            .bind(host.as_str())
            .bind(CLOSED)
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    async fn pool_hosts(&self) -> Result<Vec<PoolHost>> {
        let sql = format!("SELECT {HOST_COLUMNS} FROM pool_hosts h ORDER BY h.created_at, h.id");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.readers).await?;
        rows.iter().map(host).collect()
    }

    async fn pool_strays(&self, limit: u32) -> Result<Vec<(SandboxId, String)>> {
        let sql = format!(
            "SELECT s.id, h.provider FROM pool_slots s JOIN pool_hosts h ON h.id = s.host_id \
             WHERE NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.id = s.id AND b.state IN {ACTIVE}) \
             ORDER BY s.id LIMIT $1"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(limit).fetch_all(&self.readers).await?;
        let stray = |row: &SqliteRow| Ok((sandbox_id(&row.try_get::<String, _>("id")?)?, row.try_get("provider")?));
        rows.iter().map(stray).collect()
    }

    async fn host_expires_at(&self, host: &SandboxId) -> Result<Option<Timestamp>> {
        let last: Option<i64> = sqlx::query_scalar(
            "SELECT MAX(b.expires_at) FROM sandboxes b JOIN pool_slots s ON s.id = b.id \
             WHERE s.host_id = $1 AND b.state IN ('creating', 'running')",
        )
        .bind(host.as_str())
        .fetch_one(&self.readers)
        .await?;
        Ok(last.map(crate::clock::from_ms))
    }

    async fn pool_counts(&self) -> Result<PoolCounts> {
        let row = sqlx::query(
            "SELECT (SELECT COUNT(*) FROM pool_hosts) AS hosts, (SELECT COUNT(*) FROM pool_slots) AS slots",
        )
        .fetch_one(&self.readers)
        .await?;
        let count = |column: &str| -> Result<u64> { Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0)) };
        Ok(PoolCounts { hosts: count("hosts")?, slots: count("slots")? })
    }
}
