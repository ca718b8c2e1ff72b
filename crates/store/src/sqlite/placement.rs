//! Placement of a sandbox, decided in the transaction that admits it.

use domain::{
    Candidate, Capacity, Lease, OwnerId, SandboxId, State, Timestamp, WorkerId, WorkerStatus, choose, is_stale,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::super::error::{Error, Result};
use super::super::sandboxes::Sandbox;
use super::super::workers::PlacementFilter;
use super::rows::{self, LEASE_COLUMNS, SANDBOX_COLUMNS, count, ms, words, worker_id};

/// Returns every worker that a sandbox of `owner` on `provider` could be placed on, with its
/// load and liveness at `now`.
async fn candidates(
    connection: &mut SqliteConnection,
    provider: &str,
    owner: Option<&OwnerId>,
    now: Timestamp,
    filter: &PlacementFilter,
) -> Result<Vec<Candidate>> {
    let rows = sqlx::query(
        "SELECT id, status, providers, max_sandboxes, max_sandboxes_per_owner, last_heartbeat, unreached, \
         (SELECT rows FROM counts WHERE scope = 'worker' AND name = id) AS active, \
         (SELECT rows FROM worker_owners WHERE worker_id = id AND owner_id = $1) AS owner_active FROM workers",
    )
    .bind(owner.map(OwnerId::as_str))
    .fetch_all(connection)
    .await?;
    rows.iter().filter_map(|row| candidate(row, provider, owner, now, filter).transpose()).collect()
}

/// Reads a worker; `None` for one that may not be used.
fn candidate(
    row: &SqliteRow,
    provider: &str,
    owner: Option<&OwnerId>,
    now: Timestamp,
    filter: &PlacementFilter,
) -> Result<Option<Candidate>> {
    let id = worker_id(row.try_get("id")?)?;
    if !filter.may_use(&id) {
        return Ok(None);
    }
    let status: String = row.try_get("status")?;
    let number = |column| -> Result<u64> { Ok(count(row.try_get::<Option<i64>, _>(column)?.unwrap_or(0))) };
    Ok(Some(Candidate {
        id,
        status: WorkerStatus::parse(&status).ok_or_else(|| Error::Corrupt(format!("worker status `{status}`")))?,
        stale: is_stale(crate::clock::from_ms(row.try_get("last_heartbeat")?), now, filter.stale_after)
            || row.try_get::<i64, _>("unreached")? != 0,
        offers: words(row, "providers")?.iter().any(|offered| offered == provider),
        capacity: Capacity {
            max_sandboxes: number("max_sandboxes")?,
            max_sandboxes_per_owner: number("max_sandboxes_per_owner")?,
        },
        active: number("active")?,
        owner_active: owner.map(|_| number("owner_active")).transpose()?,
    }))
}

/// Returns the worker to place a sandbox on, and the number of eligible workers.
pub(super) async fn place(
    connection: &mut SqliteConnection,
    provider: &str,
    owner: Option<&OwnerId>,
    now: Timestamp,
    filter: &PlacementFilter,
) -> Result<(Option<WorkerId>, u64)> {
    let candidates = candidates(connection, provider, owner, now, filter).await?;
    let eligible = candidates.iter().filter(|candidate| candidate.is_eligible()).count();
    Ok((choose(&candidates).cloned(), eligible as u64))
}

/// Grants the first lease on a newly stored sandbox.
pub(super) async fn lease(
    connection: &mut SqliteConnection,
    sandbox: &Sandbox,
    worker: &WorkerId,
    filter: &PlacementFilter,
) -> Result<()> {
    write(connection, &Lease::first(sandbox.id.as_str(), worker, sandbox.created_at, filter.lease_ttl)).await
}

async fn write(connection: &mut SqliteConnection, lease: &Lease) -> Result<()> {
    sqlx::query("REPLACE INTO leases (resource_id, holder_id, generation, expires_at) VALUES ($1, $2, $3, $4)")
        .bind(&lease.resource)
        .bind(lease.holder.as_str())
        .bind(i64::try_from(lease.generation).unwrap_or(i64::MAX))
        .bind(ms(lease.expires_at))
        .execute(connection)
        .await?;
    Ok(())
}

/// Moves a sandbox in state `creating` from a worker that never received it to another. Returns
/// the moved sandbox.
pub(super) async fn place_anew(
    connection: &mut SqliteConnection,
    id: &SandboxId,
    from: &WorkerId,
    now: Timestamp,
    filter: &PlacementFilter,
) -> Result<Option<Sandbox>> {
    let sql = format!("SELECT {SANDBOX_COLUMNS} FROM sandboxes WHERE id = $1 AND worker_id = $2 AND state = $3");
    let found = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.as_str())
        .bind(from.as_str())
        .bind(State::Creating.as_str())
        .fetch_optional(&mut *connection)
        .await?;
    let Some(found) = found.as_ref().map(rows::sandbox).transpose()? else { return Ok(None) };
    let (worker, _) = place(connection, &found.provider, found.owner.as_ref(), now, filter).await?;
    let Some(worker) = worker else { return Ok(None) };
    sqlx::query("UPDATE sandboxes SET worker_id = $1 WHERE id = $2")
        .bind(worker.as_str())
        .bind(id.as_str())
        .execute(&mut *connection)
        .await?;
    let sql = format!("SELECT {LEASE_COLUMNS} FROM leases WHERE resource_id = $1");
    let before = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&mut *connection).await?;
    let before = before.as_ref().map(rows::lease).transpose()?;
    let lease = Lease::pass_on(before.as_ref(), id.as_str(), &worker, now, filter.lease_ttl);
    write(connection, &lease).await?;
    Ok(Some(Sandbox { worker, ..found }))
}
