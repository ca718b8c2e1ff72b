//! Bounds on the rows of ended sandboxes.

use domain::{OwnerId, State};
use sqlx::{Row, SqliteConnection};

use super::super::error::Result;
use super::super::sandboxes::{Kept, KeptRows};
use super::connections::Connections;
use super::rows::count;

/// Maximum number of rows deleted by one transaction, so that other writers can run in between.
const BATCH: u32 = 256;
/// Maximum number of rows deleted for one new row. More than one, so that a lowered bound is
/// reached.
const MAKE_WAY: u32 = 2;

/// Deletes older rows than the one that has just entered `state`, as far as a bound is exceeded.
pub(super) async fn make_way(
    connection: &mut SqliteConnection,
    kept: &Kept,
    state: State,
    owner: Option<&OwnerId>,
) -> Result<()> {
    let Some(bounds) = bounds(kept, state) else { return Ok(()) };
    for _ in 0..MAKE_WAY {
        let is_owned_by_too_many = match owner {
            Some(owner) => rows_of(connection, state, owner).await? > bounds.per_owner,
            None => false,
        };
        let gone = match owner.filter(|_| is_owned_by_too_many) {
            Some(owner) => forget_oldest(connection, state, owner.as_str()).await?,
            None => forget_of_all(connection, state, bounds).await?,
        };
        if !gone {
            break;
        }
    }
    Ok(())
}

/// Deletes sandboxes that ended before `before_ms` or are beyond the bounds. Returns their
/// number.
pub(super) async fn purge(writer: &Connections, kept: &Kept, before_ms: i64) -> Result<u64> {
    let mut purged = 0;
    loop {
        let done = sqlx::query(
            "DELETE FROM sandboxes WHERE rowid IN (SELECT rowid FROM sandboxes \
             WHERE state IN ('destroyed', 'failed') AND ended_at < $1 LIMIT $2)",
        )
        .bind(before_ms)
        .bind(BATCH)
        .execute(writer)
        .await?;
        purged += done.rows_affected();
        if done.rows_affected() < u64::from(BATCH) {
            break;
        }
    }
    for state in [State::Failed, State::Destroyed] {
        let Some(bounds) = bounds(kept, state) else { continue };
        loop {
            let gone = trim(writer, state, bounds).await?;
            purged += u64::from(gone);
            if gone < BATCH {
                break;
            }
        }
    }
    Ok(purged)
}

/// Deletes at most [`BATCH`] rows that are beyond the bounds. Returns their number.
async fn trim(writer: &Connections, state: State, bounds: &KeptRows) -> Result<u32> {
    let mut writer = writer.acquire().await?;
    let mut tx = writer.begin().await?;
    let mut gone = 0;
    while gone < BATCH
        && (forget_of_most(&mut tx, state, bounds).await? || forget_of_all(&mut tx, state, bounds).await?)
    {
        gone += 1;
    }
    tx.commit().await?;
    Ok(gone)
}

fn bounds(kept: &Kept, state: State) -> Option<&KeptRows> {
    match state {
        State::Failed => Some(&kept.failed),
        State::Destroyed => Some(&kept.destroyed),
        State::Creating | State::Running | State::Paused | State::Destroying => None,
    }
}

async fn rows_of(connection: &mut SqliteConnection, state: State, owner: &OwnerId) -> Result<u64> {
    let rows: Option<i64> = sqlx::query_scalar("SELECT rows FROM ended WHERE state = $1 AND owner_id = $2")
        .bind(state.as_str())
        .bind(owner.as_str())
        .fetch_optional(connection)
        .await?;
    Ok(rows.map_or(0, count))
}

/// Deletes the oldest row of the owner that is the farthest beyond its bound.
async fn forget_of_most(connection: &mut SqliteConnection, state: State, bounds: &KeptRows) -> Result<bool> {
    // Rows without an owner are under no owner's bound.
    let owner: Option<String> = sqlx::query_scalar(
        "SELECT owner_id FROM ended WHERE state = $1 AND rows > $2 AND owner_id <> '' ORDER BY rows DESC LIMIT 1",
    )
    .bind(state.as_str())
    .bind(i64::try_from(bounds.per_owner).unwrap_or(i64::MAX))
    .fetch_optional(&mut *connection)
    .await?;
    match owner {
        Some(owner) => forget_oldest(connection, state, &owner).await,
        None => Ok(false),
    }
}

/// Deletes one row if the total bound is exceeded: the oldest of the owner with the most rows,
/// or the oldest of all once each owner has a single one.
async fn forget_of_all(connection: &mut SqliteConnection, state: State, bounds: &KeptRows) -> Result<bool> {
    let total: Option<i64> = sqlx::query_scalar("SELECT rows FROM counts WHERE scope = 'state' AND name = $1")
        .bind(state.as_str())
        .fetch_optional(&mut *connection)
        .await?;
    if total.map_or(0, count) <= bounds.total {
        return Ok(false);
    }
    let most = sqlx::query("SELECT owner_id, rows FROM ended WHERE state = $1 ORDER BY rows DESC LIMIT 1")
        .bind(state.as_str())
        .fetch_optional(&mut *connection)
        .await?;
    let Some(most) = most else { return Ok(false) };
    if most.try_get::<i64, _>("rows")? > 1 {
        return forget_oldest(connection, state, &most.try_get::<String, _>("owner_id")?).await;
    }
    let done = sqlx::query(
        "DELETE FROM sandboxes WHERE rowid = (SELECT rowid FROM sandboxes \
         WHERE state IN ('destroyed', 'failed') AND state = $1 ORDER BY ended_at LIMIT 1)",
    )
    .bind(state.as_str())
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Deletes the row of an owner that ended first; of no owner, if the name is empty.
async fn forget_oldest(connection: &mut SqliteConnection, state: State, owner: &str) -> Result<bool> {
    let done = sqlx::query(
        "DELETE FROM sandboxes WHERE rowid = (SELECT rowid FROM sandboxes \
         WHERE state IN ('destroyed', 'failed') AND state = $1 AND owner_id IS NULLIF($2, '') \
         ORDER BY ended_at LIMIT 1)",
    )
    .bind(state.as_str())
    .bind(owner)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

#[cfg(test)]
mod test {
    use super::super::Sqlite;
    use super::*;
    use crate::Maintenance as _;

    /// The statements above must read few rows, however many there are.
    #[tokio::test]
    async fn the_row_that_makes_way_is_found_by_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        for (sql, index) in [
            (
                "SELECT rowid FROM sandboxes WHERE state IN ('destroyed', 'failed') AND state = $1 \
                 AND owner_id IS NULLIF($2, '') ORDER BY ended_at LIMIT 1",
                "sandboxes_ended_by_owner (state=? AND owner_id=?)",
            ),
            (
                "SELECT rowid FROM sandboxes WHERE state IN ('destroyed', 'failed') AND state = $1 \
                 ORDER BY ended_at LIMIT 1",
                "sandboxes_by_end (state=?)",
            ),
            ("SELECT owner_id FROM ended WHERE state = $1 ORDER BY rows DESC LIMIT 1", "ended_by_rows (state=?)"),
            (
                "SELECT rowid FROM sandboxes WHERE state IN ('destroyed', 'failed') AND ended_at < $1 LIMIT 256",
                "sandboxes_by_end (state=? AND ended_at<?)",
            ),
        ] {
            let plan = sqlx::query(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")));
            let steps = plan.fetch_all(&store.readers).await.unwrap();
            let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
            assert!(steps.len() == 1 && steps[0].contains(index), "{sql}: {steps:?}");
        }
        store.close().await;
    }
}
