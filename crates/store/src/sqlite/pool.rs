//! Transactions on shared boxes.

use async_trait::async_trait;
use domain::{Denial, NoPlace, OwnerId, Places, SandboxId, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::super::error::Result;
use super::super::pool::{PoolBounds, PoolCounts, PoolHost, PoolPlace, PoolStore};
use super::super::sandboxes::Sandbox;
use super::database::Sqlite;
use super::rows::{ms, resources, sandbox_id};

const HOST_COLUMNS: &str = "h.id, h.state, h.provider, h.image, h.memory_mb, h.vcpus, h.disk_mb, h.pids, h.places";
/// State of a box that takes new slots.
const OPEN: &str = "open";
/// State of a box that is being removed.
const CLOSED: &str = "closed";

fn host(row: &SqliteRow) -> Result<PoolHost> {
    Ok(PoolHost {
        id: sandbox_id(&row.try_get::<String, _>("id")?)?,
        is_open: row.try_get::<String, _>("state")? == OPEN,
        provider: row.try_get("provider")?,
        image: row.try_get("image")?,
        resources: resources(row)?,
        places: row.try_get("places")?,
    })
}

type SqliteQuery<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

/// Place for a new sandbox.
enum Free {
    /// A place in this open box.
    In(SandboxId),
    /// A place in a new box.
    InNew,
    /// No place.
    Nowhere(Denial),
}

/// Binds the first seven values of a statement about open boxes that `sandbox` fits in.
fn bind_kind<'q>(query: SqliteQuery<'q>, sandbox: &'q Sandbox) -> SqliteQuery<'q> {
    let size = sandbox.resources;
    query
        .bind(OPEN)
        .bind(&sandbox.provider)
        .bind(&sandbox.image)
        .bind(size.memory_mb)
        .bind(size.vcpus)
        .bind(size.disk_mb)
        .bind(size.pids)
}

async fn free(connection: &mut sqlx::SqliteConnection, sandbox: &Sandbox, bounds: PoolBounds) -> Result<Free> {
    let fullest = sqlx::query(
        "SELECT id FROM (SELECT h.id, h.places, h.created_at, \
         (SELECT COUNT(*) FROM pool_slots s WHERE s.host_id = h.id) AS taken FROM pool_hosts h \
         WHERE h.state = $1 AND h.provider = $2 AND h.image = $3 AND h.memory_mb = $4 AND h.vcpus = $5 \
         AND h.disk_mb = $6 AND h.pids = $7) AS fitting \
         WHERE taken < places AND taken < $8 ORDER BY taken DESC, created_at, id LIMIT 1",
    );
    let fullest = bind_kind(fullest, sandbox).bind(bounds.places).fetch_optional(&mut *connection).await?;
    if let Some(row) = fullest {
        return Ok(Free::In(sandbox_id(&row.try_get::<String, _>("id")?)?));
    }
    let hosts: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM pool_hosts").fetch_one(&mut *connection).await?;
    let own = match &sandbox.owner {
        Some(owner) => opened_for(connection, owner, bounds).await?,
        None => 0,
    };
    let places = Places { all: bounds.hosts_max as usize, of_one: None };
    Ok(match places.admit(usize::try_from(hosts).unwrap_or(usize::MAX), own) {
        Ok(()) => Free::InNew,
        Err(NoPlace::Queue) => Free::Nowhere(Denial::PoolFull),
        Err(NoPlace::Share) => Free::Nowhere(Denial::PoolShare),
    })
}

/// Returns the number of boxes that hold this owner alone and are not full. Without a bound on
/// it, an owner that spawns many sizes would take all boxes with one sandbox in each.
async fn opened_for(connection: &mut sqlx::SqliteConnection, owner: &OwnerId, bounds: PoolBounds) -> Result<usize> {
    let own: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM pool_hosts h WHERE h.state = $1 \
         AND (SELECT COUNT(*) FROM pool_slots s WHERE s.host_id = h.id) < MIN(h.places, $2) \
         AND NOT EXISTS (SELECT 1 FROM pool_slots s LEFT JOIN sandboxes b ON b.id = s.id \
         WHERE s.host_id = h.id AND b.owner_id IS NOT $3)",
    )
    .bind(OPEN)
    .bind(bounds.places)
    .bind(owner.as_str())
    .fetch_one(connection)
    .await?;
    Ok(usize::try_from(own).unwrap_or(usize::MAX))
}

/// Takes a place for a sandbox that is being admitted. Returns the reason if there is none.
pub(super) async fn take_place(
    connection: &mut sqlx::SqliteConnection,
    sandbox: &Sandbox,
    place: &PoolPlace,
) -> Result<Option<Denial>> {
    let host = match free(connection, sandbox, place.bounds).await? {
        Free::Nowhere(denial) => return Ok(Some(denial)),
        Free::In(host) => host,
        Free::InNew => {
            let new = sqlx::query(
                "INSERT INTO pool_hosts (state, provider, image, memory_mb, vcpus, disk_mb, pids, id, places, \
                 created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            );
            bind_kind(new, sandbox)
                .bind(place.new_host.as_str())
                .bind(place.bounds.places)
                .bind(ms(sandbox.created_at))
                .execute(&mut *connection)
                .await?;
            place.new_host.clone()
        }
    };
    sqlx::query("INSERT INTO pool_slots (id, host_id) VALUES ($1, $2)")
        .bind(sandbox.id.as_str())
        .bind(host.as_str())
        .execute(connection)
        .await?;
    Ok(None)
}

#[async_trait]
impl PoolStore for Sqlite {
    async fn lacks_place(&self, sandbox: &Sandbox, bounds: PoolBounds) -> Result<Option<Denial>> {
        match free(&mut *self.readers.acquire().await?, sandbox, bounds).await? {
            Free::Nowhere(denial) => Ok(Some(denial)),
            Free::In(_) | Free::InNew => Ok(None),
        }
    }

    async fn host_of(&self, slot: &SandboxId) -> Result<Option<PoolHost>> {
        let sql =
            format!("SELECT {HOST_COLUMNS} FROM pool_hosts h JOIN pool_slots s ON s.host_id = h.id WHERE s.id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(slot.as_str()).fetch_optional(&self.readers).await?;
        row.map(|row| host(&row)).transpose()
    }

    async fn leave(&self, slot: &SandboxId) -> Result<Option<SandboxId>> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
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
        let rows = sqlx::query(
            "SELECT s.id, h.provider FROM pool_slots s JOIN pool_hosts h ON h.id = s.host_id \
             WHERE NOT EXISTS (SELECT 1 FROM sandboxes b JOIN active_states a ON a.state = b.state WHERE b.id = s.id) \
             ORDER BY s.id LIMIT $1",
        )
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        let stray = |row: &SqliteRow| Ok((sandbox_id(&row.try_get::<String, _>("id")?)?, row.try_get("provider")?));
        rows.iter().map(stray).collect()
    }

    async fn host_expires_at(&self, host: &SandboxId) -> Result<Option<Timestamp>> {
        let last: Option<i64> = sqlx::query_scalar(
            "SELECT MAX(b.expires_at) FROM sandboxes b JOIN pool_slots s ON s.id = b.id \
             WHERE s.host_id = $1 AND b.state IN ('creating', 'running', 'paused')",
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
