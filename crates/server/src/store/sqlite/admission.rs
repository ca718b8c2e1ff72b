//! Admission of a sandbox, in one transaction.
//!
//! Each statement is a round trip to the thread of its connection, which costs more than the statement.
//! Where no other server can take the sandbox, one string therefore holds all of them: the row is
//! inserted first, and the transaction undone if the rules decide otherwise.

use std::sync::LazyLock;

use domain::{Active, Caps, Lease, OwnerId, Quota, Room, SandboxEgress, SandboxId, Timestamp, WorkerId, choose};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Row, SqliteConnection};

use super::super::admission::{Admitted, IdempotencyKey, KEY_LIFETIME, NewSandbox};
use super::super::error::Result;
use super::super::sandboxes::Sandbox;
use super::placement;
use super::policies::policies_text;
use super::pool;
use super::rows::{self, count, metadata_text, ms};

/// Number of the owner's parameter in [`INSERT`].
const OWNER: &str = "$10";

const INSERT: &str = "INSERT INTO sandboxes (id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, \
    owner_id, worker_id, created_at, expires_at, egress, auto_pause_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

/// The counts and caps, this server as a worker, the row, and its lease, in this order.
static ADMIT_HERE: LazyLock<String> = LazyLock::new(|| {
    let (room, candidates) = (room_sql(OWNER), placement::candidates_sql(OWNER));
    format!("{room}; {candidates} WHERE id = $11; {INSERT}; {}", placement::lease_sql(["$1", "$11", "$16", "$17"]))
});

/// Admits a sandbox if the rules allow it.
pub(super) async fn admit(writer: &SqlitePool, new: &NewSandbox) -> Result<Admitted> {
    let NewSandbox { sandbox, egress, caps, key, placement, pool } = new;
    let owner = sandbox.owner.as_ref();
    // IMMEDIATE: a deferred transaction that becomes a writer can fail at once.
    let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
    if let Some(key) = key
        && !take_key(&mut tx, owner, key, &sandbox.id, sandbox.created_at).await?
    {
        return Ok(Admitted::KeyTaken);
    }
    if pool.is_none() && placement.here && placement.reachable.is_empty() {
        let admitted = admit_here(&mut tx, new).await?;
        if matches!(admitted, Admitted::Yes(_)) {
            tx.commit().await?;
        }
        return Ok(admitted);
    }
    if *caps != Caps::default() || owner.is_some() || pool.is_some() {
        let room = room(&mut tx, owner, *caps).await?;
        if let Err(denial) = room.admit() {
            return Ok(Admitted::Denied(denial, room));
        }
        if let Some(place) = pool
            && let Some(denial) = pool::take_place(&mut tx, sandbox, place).await?
        {
            return Ok(Admitted::Denied(denial, room));
        }
    }
    let (worker, _) = placement::place(&mut tx, &sandbox.provider, owner, sandbox.created_at, placement).await?;
    let Some(worker) = worker else { return Ok(Admitted::NoWorker) };
    row(INSERT, sandbox, egress, &worker).execute(&mut *tx).await?;
    placement::lease(&mut tx, sandbox, &worker, placement).await?;
    tx.commit().await?;
    Ok(Admitted::Yes(worker))
}

/// Stores a sandbox that no other server could take, and decides whether it may stay: otherwise the
/// caller has to undo the transaction.
async fn admit_here(connection: &mut SqliteConnection, new: &NewSandbox) -> Result<Admitted> {
    let NewSandbox { sandbox, egress, caps, placement, .. } = new;
    let here = WorkerId::local();
    let Lease { generation, expires_at, .. } =
        Lease::first(sandbox.id.as_str(), &here, sandbox.created_at, placement.lease_ttl);
    let rows = row(&ADMIT_HERE, sandbox, egress, &here)
        .bind(i64::try_from(generation).unwrap_or(i64::MAX))
        .bind(ms(expires_at))
        .fetch_all(connection)
        .await?;
    let (counts, workers) = rows.split_first().ok_or(sqlx::Error::RowNotFound)?;
    let room = room_of(counts, sandbox.owner.as_ref(), *caps)?;
    if let Err(denial) = room.admit() {
        return Ok(Admitted::Denied(denial, room));
    }
    let candidate =
        |row| placement::candidate(row, &sandbox.provider, sandbox.owner.as_ref(), sandbox.created_at, placement);
    let candidates = workers.iter().filter_map(|row| candidate(row).transpose()).collect::<Result<Vec<_>>>()?;
    Ok(choose(&candidates).map_or(Admitted::NoWorker, |worker| Admitted::Yes(worker.clone())))
}

fn room_sql(owner: &str) -> String {
    format!(
        "SELECT (SELECT rows FROM counts WHERE scope = 'active' AND name = '') AS total, \
         (SELECT rows FROM counts WHERE scope = 'owner' AND name = {owner}) AS owner, \
         (SELECT max_sandboxes FROM quotas WHERE owner_id = {owner}) AS max_sandboxes"
    )
}

/// Reads the active counts and the caps in one statement, since every spawn waits for it.
pub(super) async fn room(connection: &mut SqliteConnection, owner: Option<&OwnerId>, caps: Caps) -> Result<Room> {
    let sql = sqlx::query(sqlx::AssertSqlSafe(room_sql("$1")));
    room_of(&sql.bind(owner.map(OwnerId::as_str)).fetch_one(connection).await?, owner, caps)
}

fn room_of(row: &SqliteRow, owner: Option<&OwnerId>, caps: Caps) -> Result<Room> {
    let number = |column| -> Result<u64> { Ok(count(row.try_get::<Option<i64>, _>(column)?.unwrap_or(0))) };
    let quota = Quota { max_sandboxes: number("max_sandboxes")?, ..Quota::default() };
    let active = Active { total: number("total")?, owner: owner.map(|_| number("owner")).transpose()? };
    Ok(Room { active, caps: caps.under(&quota) })
}

/// Takes the key. Returns `false` if it is in use.
async fn take_key(
    connection: &mut SqliteConnection,
    owner: Option<&OwnerId>,
    key: &IdempotencyKey,
    id: &SandboxId,
    now: Timestamp,
) -> Result<bool> {
    let done = sqlx::query(
        "INSERT INTO idempotency_keys (owner_id, key, request, sandbox_id, created_at) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT DO UPDATE SET request = $3, sandbox_id = $4, created_at = $5 WHERE created_at <= $6",
    )
    .bind(owner.map_or("", OwnerId::as_str))
    .bind(&key.key)
    .bind(&key.request)
    .bind(id.as_str())
    .bind(ms(now))
    .bind(key_ends(now))
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Returns the time at or before which keys must have been taken to be free at `now`.
pub(super) fn key_ends(now: Timestamp) -> i64 {
    ms(now).saturating_sub(i64::try_from(KEY_LIFETIME.as_millis()).unwrap_or(i64::MAX))
}

/// Returns `sql` with the columns of a new row as its first parameters.
fn row<'q>(
    sql: &'q str,
    new: &'q Sandbox,
    egress: &SandboxEgress,
    worker: &'q WorkerId,
) -> sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments> {
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(new.id.as_str())
        .bind(new.state.as_str())
        .bind(&new.provider)
        .bind(&new.image)
        .bind(new.resources.memory_mb)
        .bind(new.resources.vcpus)
        .bind(new.resources.disk_mb)
        .bind(new.resources.pids)
        .bind(metadata_text(&new.metadata))
        .bind(new.owner.as_ref().map(|owner| owner.as_str()))
        .bind(worker.as_str())
        .bind(ms(new.created_at))
        .bind(ms(new.expires_at))
        .bind(policies_text(egress))
        .bind(rows::ttl_ms(new.auto_pause))
}
