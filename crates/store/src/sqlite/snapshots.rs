//! Snapshots of sandboxes.

use async_trait::async_trait;
use domain::{OwnerId, SnapshotId};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::super::error::{Error, Result};
use super::super::snapshots::{
    NewSnapshot, Snapshot, SnapshotBounds, SnapshotCursor, SnapshotFilter, SnapshotState, SnapshotStore,
};
use super::database::Sqlite;
use super::rows::{count, ms, resources, sandbox_id};

const COLUMNS: &str = "id, name, owner_id, sandbox_id, provider, image, memory_mb, vcpus, disk_mb, pids, state, \
                       temporary, has_memory, size_bytes, created_at, of_template";

fn read(row: &SqliteRow) -> Result<Snapshot> {
    let state: String = row.try_get("state")?;
    Ok(Snapshot {
        id: snapshot_id(row)?,
        name: row.try_get("name")?,
        owner: row.try_get::<Option<String>, _>("owner_id")?.map(OwnerId::stored),
        sandbox: sandbox_id(row.try_get("sandbox_id")?)?,
        provider: row.try_get("provider")?,
        image: row.try_get("image")?,
        resources: resources(row)?,
        state: SnapshotState::parse(&state).ok_or_else(|| Error::Corrupt(format!("state `{state}`")))?,
        is_temporary: row.try_get("temporary")?,
        is_of_template: row.try_get("of_template")?,
        has_memory: row.try_get("has_memory")?,
        size_bytes: count(row.try_get("size_bytes")?),
        created_at: crate::clock::from_ms(row.try_get("created_at")?),
    })
}

fn snapshot_id(row: &SqliteRow) -> Result<SnapshotId> {
    let id: String = row.try_get("id")?;
    SnapshotId::parse(&id).map_err(|_| Error::Corrupt(format!("snapshot id `{id}`")))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[async_trait]
impl SnapshotStore for Sqlite {
    async fn insert_snapshot(&self, snapshot: &Snapshot, bounds: SnapshotBounds) -> Result<NewSnapshot> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        let taken = "SELECT COALESCE(SUM(temporary = 0), 0) AS rows, \
                     COALESCE(SUM(temporary = 0 AND owner_id = $1), 0) AS owned, \
                     COALESCE(SUM(size_bytes), 0) AS bytes FROM snapshots";
        let owner = snapshot.owner.as_ref().map(OwnerId::as_str);
        let taken = sqlx::query(taken).bind(owner).fetch_one(&mut *tx).await?;
        if !snapshot.is_temporary {
            if count(taken.try_get("rows")?) >= bounds.count {
                return Ok(NewSnapshot::TooMany);
            }
            if owner.is_some() && bounds.per_owner > 0 && count(taken.try_get("owned")?) >= bounds.per_owner {
                return Ok(NewSnapshot::TooManyOfOwner);
            }
        }
        if bounds.bytes > 0 && count(taken.try_get("bytes")?).saturating_add(bounds.left_bytes) >= bounds.bytes {
            return Ok(NewSnapshot::TooLarge);
        }
        let sql = format!(
            "INSERT INTO snapshots ({COLUMNS}) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(snapshot.id.as_str())
            .bind(&snapshot.name)
            .bind(snapshot.owner.as_ref().map(OwnerId::as_str))
            .bind(snapshot.sandbox.as_str())
            .bind(&snapshot.provider)
            .bind(&snapshot.image)
            .bind(snapshot.resources.memory_mb)
            .bind(snapshot.resources.vcpus)
            .bind(snapshot.resources.disk_mb)
            .bind(snapshot.resources.pids)
            .bind(snapshot.state.as_str())
            .bind(snapshot.is_temporary)
            .bind(snapshot.has_memory)
            .bind(signed(snapshot.size_bytes))
            .bind(ms(snapshot.created_at))
            .bind(snapshot.is_of_template)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(NewSnapshot::Done)
    }

    async fn complete_snapshot(
        &self,
        id: &SnapshotId,
        size_bytes: u64,
        has_memory: bool,
        bounds: SnapshotBounds,
    ) -> Result<Option<Snapshot>> {
        let sql = format!(
            "UPDATE snapshots SET state = CASE temporary WHEN 0 THEN 'ready' ELSE state END, size_bytes = $2, \
             has_memory = $3 WHERE id = $1 AND state = 'creating' AND ($4 = 0 OR $4 - $5 >= $2 + \
             (SELECT COALESCE(SUM(size_bytes), 0) FROM snapshots)) RETURNING {COLUMNS}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id.as_str())
            .bind(signed(size_bytes))
            .bind(has_memory)
            .bind(signed(bounds.bytes))
            .bind(signed(bounds.left_bytes))
            .fetch_optional(&self.writer)
            .await?;
        row.map(|row| read(&row)).transpose()
    }

    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let sql = format!("SELECT {COLUMNS} FROM snapshots WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&self.readers).await?;
        row.map(|row| read(&row)).transpose()
    }

    async fn snapshots(
        &self,
        filter: &SnapshotFilter,
        after: Option<&SnapshotCursor>,
        limit: u32,
    ) -> Result<Vec<Snapshot>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM snapshots WHERE state = 'ready' AND (created_at, id) < ($1, $2) \
             AND ($3 IS NULL OR owner_id = $3) AND ($4 IS NULL OR sandbox_id = $4) \
             AND NOT ($6 AND of_template) ORDER BY created_at DESC, id DESC LIMIT $5"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(after.map_or(i64::MAX, |after| ms(after.created_at)))
            .bind(after.map_or("", |after| after.id.as_str()))
            .bind(filter.owner.as_ref().map(OwnerId::as_str))
            .bind(filter.sandbox.as_ref().map(domain::SandboxId::as_str))
            .bind(limit)
            .bind(filter.without_templates)
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(read).collect()
    }

    async fn snapshots_of(&self, provider: &str) -> Result<Vec<SnapshotId>> {
        let sql = "SELECT id FROM snapshots WHERE state = 'ready' AND provider = $1";
        let rows = sqlx::query(sql).bind(provider).fetch_all(&self.readers).await?;
        rows.iter().map(snapshot_id).collect()
    }

    async fn unfinished_snapshots(&self) -> Result<Vec<Snapshot>> {
        let sql = format!("SELECT {COLUMNS} FROM snapshots WHERE state != 'ready'");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.readers).await?;
        rows.iter().map(read).collect()
    }

    async fn begin_snapshot_removal(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let sql = format!("UPDATE snapshots SET state = 'destroying' WHERE id = $1 RETURNING {COLUMNS}");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&self.writer).await?;
        row.map(|row| read(&row)).transpose()
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool> {
        let done = sqlx::query("DELETE FROM snapshots WHERE id = $1 AND state = 'destroying'").bind(id.as_str());
        Ok(done.execute(&self.writer).await?.rows_affected() == 1)
    }
}
