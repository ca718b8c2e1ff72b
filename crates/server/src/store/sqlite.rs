//! The embedded engine: SQLite in WAL mode, one connection that writes.

mod audit;
mod ended;
mod list;
mod placement;
mod pool;
mod quotas;
mod rows;
mod schema;
mod space;
mod templates;
mod workers;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use domain::{
    Active, Caps, InvalidTransition, OwnerId, Quota, Room, SandboxId, SpawnOptions, State, StopReason, StoreId,
    Timestamp, WorkerId,
};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqliteSynchronous};
use sqlx::{Connection as _, Row, Sqlite as Engine};

use self::rows::{SANDBOX_COLUMNS, metadata_text, ms, sandbox};
use super::{
    Admitted, Applied, Change, Counts, Error, IdempotencyKey, Inserted, KEY_LIFETIME, Kept, KeptRows, ListFilter,
    NewSandbox, OwnerQuota, Page, QuotaSummary, Result, Sandbox, Store, Template,
};

/// Number of reading connections. Each is a thread with a page cache, and reads take
/// microseconds, so that two cores' worth suffice.
const READERS: u32 = 2;
/// Number of connections for searches over all rows. Searches queue behind each other, and no
/// read of single rows waits for them.
const SEARCHERS: u32 = 1;
/// Deadline of a statement for another process's lock on the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Counts kept by triggers, without those by owner, of which there may be many.
const COUNTS: &str = "SELECT scope, name, rows FROM counts \
    WHERE scope IN ('active', 'state', 'provider', 'worker') AND rows > 0";

/// Bounds on ended rows unless [`Sqlite::keeping`] sets others.
const KEPT: Kept =
    Kept { failed: KeptRows { total: 1_000, per_owner: 100 }, destroyed: KeptRows { total: 10_000, per_owner: 1_000 } };
/// Maximum length of a stored failure reason, in characters.
const ERROR_CHARS_MAX: usize = 2_048;

/// A store in one SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    id: StoreId,
    path: PathBuf,
    kept: Kept,
    writer: SqlitePool,
    readers: SqlitePool,
    searches: SqlitePool,
}

impl Sqlite {
    /// Opens the file, and creates or upgrades it as needed. `entropy` becomes the id of a new
    /// store.
    ///
    /// # Errors
    /// If the file cannot be opened, or was written by a later release.
    pub async fn open(path: &Path, entropy: [u8; 10]) -> Result<Self> {
        space::keep_to_ourselves(path).map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A crash of the server loses nothing. A power failure may lose the last moments,
            // and ends every box anyway.
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("cache_size", "-512")
            .pragma("journal_size_limit", space::WAL_BYTES_MAX.to_string());
        let pool = |connections| {
            PoolOptions::<Engine>::new()
                .max_connections(connections)
                .min_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
                // Each check is a round trip to the connection's thread, and a connection to a
                // local file does not break.
                .test_before_acquire(false)
                .before_acquire(|connection, _| Box::pin(is_fit(connection)))
        };
        let writer = pool(1).connect_with(options.clone()).await?;
        schema::upgrade(&writer).await?;
        space::prepare(&writer, path).await?;
        let id = schema::store_id(&writer, StoreId::from_entropy(entropy)).await?;
        let readers = pool(READERS).connect_with(options.clone()).await?;
        let searches = pool(SEARCHERS).min_connections(0).connect_lazy_with(options);
        Ok(Self { id, path: path.to_owned(), kept: KEPT, writer, readers, searches })
    }

    /// Sets the bounds on rows of ended sandboxes.
    #[must_use]
    pub fn keeping(mut self, kept: Kept) -> Self {
        self.kept = kept;
        self
    }
}

/// Returns whether a connection can begin a transaction. On a full disk SQLite ends a
/// transaction without sqlx noticing, which then takes it for open for ever.
async fn is_fit(connection: &mut sqlx::SqliteConnection) -> std::result::Result<bool, sqlx::Error> {
    if connection.is_in_transaction() {
        // The end of the last transaction may still be under way.
        connection.ping().await?;
    }
    Ok(!connection.is_in_transaction())
}

/// Reads the active counts and the caps in one statement, since every spawn waits for it.
async fn room(connection: &mut sqlx::SqliteConnection, owner: Option<&OwnerId>, caps: Caps) -> Result<Room> {
    let row = sqlx::query(
        "SELECT (SELECT rows FROM counts WHERE scope = 'active' AND name = '') AS total, \
         (SELECT rows FROM counts WHERE scope = 'owner' AND name = $1) AS owner, \
         (SELECT max_sandboxes FROM quotas WHERE owner_id = $1) AS max_sandboxes",
    )
    .bind(owner.map(OwnerId::as_str))
    .fetch_one(connection)
    .await?;
    let number = |column| -> Result<u64> { Ok(count(row.try_get::<Option<i64>, _>(column)?.unwrap_or(0))) };
    let quota = Quota { max_sandboxes: number("max_sandboxes")?, ..Quota::default() };
    let active = Active { total: number("total")?, owner: owner.map(|_| number("owner")).transpose()? };
    Ok(Room { active, caps: caps.under(&quota) })
}

/// Takes the key. Returns `false` if it is in use.
async fn take_key(
    connection: &mut sqlx::SqliteConnection,
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
fn key_ends(now: Timestamp) -> i64 {
    ms(now).saturating_sub(i64::try_from(KEY_LIFETIME.as_millis()).unwrap_or(i64::MAX))
}

/// Returns whether the change leaves no sandbox for a retry of the request to return.
fn frees_key(change: &Change) -> bool {
    match change {
        Change::Broke { .. } => true,
        Change::StopRequested { reason, .. } => matches!(reason, StopReason::Abandoned | StopReason::Unfinished),
        Change::Started | Change::Extended { .. } | Change::Stopped { .. } => false,
    }
}

fn count(rows: i64) -> u64 {
    u64::try_from(rows).unwrap_or(0)
}

async fn insert(connection: &mut sqlx::SqliteConnection, new: &Sandbox, worker: &WorkerId) -> Result<()> {
    sqlx::query(
        "INSERT INTO sandboxes (id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, owner_id, \
         worker_id, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    )
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
    .execute(connection)
    .await?;
    Ok(())
}

/// Values that a change writes besides the state.
struct Columns {
    expires_at: Option<i64>,
    ended_at: Option<i64>,
    error: Option<String>,
    stop_reason: Option<&'static str>,
}

fn columns(change: &Change) -> Columns {
    let none = Columns { expires_at: None, ended_at: None, error: None, stop_reason: None };
    match change {
        Change::Started => none,
        Change::Extended { expires_at, .. } => Columns { expires_at: Some(ms(*expires_at)), ..none },
        Change::StopRequested { reason, .. } => Columns { stop_reason: Some(rows::stop_reason(*reason)), ..none },
        Change::Stopped { at } => Columns { ended_at: Some(ms(*at)), ..none },
        Change::Broke { error, at } => {
            Columns { ended_at: Some(ms(*at)), error: Some(error.chars().take(ERROR_CHARS_MAX).collect()), ..none }
        }
    }
}

#[async_trait]
impl Store for Sqlite {
    fn id(&self) -> &StoreId {
        &self.id
    }

    async fn admit(&self, new: &NewSandbox) -> Result<Admitted> {
        let NewSandbox { sandbox, caps, key, placement, pool } = new;
        let owner = sandbox.owner.as_ref();
        // IMMEDIATE: a deferred transaction that becomes a writer can fail at once.
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        if let Some(key) = key
            && !take_key(&mut tx, owner, key, &sandbox.id, sandbox.created_at).await?
        {
            return Ok(Admitted::KeyTaken);
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
        insert(&mut tx, sandbox, &worker).await?;
        placement::lease(&mut tx, sandbox, &worker, placement).await?;
        tx.commit().await?;
        Ok(Admitted::Yes(worker))
    }

    async fn room(&self, owner: Option<&OwnerId>, caps: Caps) -> Result<Room> {
        room(&mut *self.readers.acquire().await?, owner, caps).await
    }

    async fn keyed(&self, owner: Option<&OwnerId>, key: &str, now: Timestamp) -> Result<Option<(String, SandboxId)>> {
        let row = sqlx::query(
            "SELECT request, sandbox_id FROM idempotency_keys WHERE owner_id = $1 AND key = $2 AND created_at > $3",
        )
        .bind(owner.map_or("", OwnerId::as_str))
        .bind(key)
        .bind(key_ends(now))
        .fetch_optional(&self.readers)
        .await?;
        row.map(|row| Ok((row.try_get("request")?, rows::sandbox_id(&row.try_get::<String, _>("sandbox_id")?)?)))
            .transpose()
    }

    async fn counts(&self) -> Result<Counts> {
        // Bounded: counts by owner, of which there can be any number, are left out.
        let rows = sqlx::query(COUNTS).fetch_all(&self.readers).await?;
        let mut counts = Counts::default();
        for row in rows {
            let (scope, name): (String, String) = (row.try_get("scope")?, row.try_get("name")?);
            let rows = count(row.try_get("rows")?);
            let by = match scope.as_str() {
                "active" => {
                    counts.active = rows;
                    continue;
                }
                "state" => &mut counts.by_state,
                "provider" => &mut counts.by_provider,
                "worker" => &mut counts.by_worker,
                _ => return Err(Error::Corrupt(format!("count `{scope}`"))),
            };
            by.insert(name, rows);
        }
        Ok(counts)
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>> {
        let sql = format!("SELECT {SANDBOX_COLUMNS} FROM sandboxes WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&self.readers).await?;
        row.map(|row| sandbox(&row)).transpose()
    }

    async fn sandboxes(&self, filter: &ListFilter, now: Timestamp) -> Result<Page> {
        let pool = if filter.metadata.is_empty() { &self.readers } else { &self.searches };
        list::page(pool, filter, now).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<SandboxId>> {
        let rows = sqlx::query(
            "SELECT id FROM sandboxes WHERE state IN ('creating', 'running') AND expires_at <= $1 \
             ORDER BY expires_at LIMIT $2",
        )
        .bind(ms(now))
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| rows::sandbox_id(&row.try_get::<String, _>("id")?)).collect()
    }

    async fn in_state(&self, state: State, limit: u32) -> Result<Vec<Sandbox>> {
        let sql = format!("SELECT {SANDBOX_COLUMNS} FROM sandboxes WHERE state = $1 ORDER BY created_at LIMIT $2");
        let rows =
            sqlx::query(sqlx::AssertSqlSafe(sql)).bind(state.as_str()).bind(limit).fetch_all(&self.readers).await?;
        rows.iter().map(sandbox).collect()
    }

    async fn running(&self, worker: &str, provider: Option<&str>) -> Result<Vec<SandboxId>> {
        let rows = sqlx::query(
            "SELECT id FROM sandboxes WHERE state = 'running' AND worker_id = $1 AND ($2 IS NULL OR provider = $2)",
        )
        .bind(worker)
        .bind(provider)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| rows::sandbox_id(&row.try_get::<String, _>("id")?)).collect()
    }

    async fn check(&self) -> Result<()> {
        sqlx::query("SELECT id FROM store").fetch_one(&self.readers).await?;
        // Takes the write lock, and releases it at once.
        self.writer.begin_with("BEGIN IMMEDIATE").await?.rollback().await?;
        Ok(())
    }

    async fn apply(&self, id: &SandboxId, change: Change) -> Result<Applied> {
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let sql = format!("SELECT {SANDBOX_COLUMNS} FROM sandboxes WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.as_str()).fetch_optional(&mut *tx).await?;
        let Some(row) = row else { return Ok(Applied::Missing) };
        let found = sandbox(&row)?;
        let before = found.state;
        let after = match before.after(change.event()) {
            Ok(after) => after,
            Err(refusal) => return Ok(Applied::Refused(refusal)),
        };
        match change {
            Change::Extended { now, .. } if found.expires_at <= now => return Ok(Applied::Missing),
            Change::StopRequested { reason, now } if !reason.holds(before, found.expires_at <= now) => {
                return Ok(Applied::Refused(InvalidTransition { from: before, event: change.event() }));
            }
            Change::Started
            | Change::Extended { .. }
            | Change::StopRequested { .. }
            | Change::Stopped { .. }
            | Change::Broke { .. } => {}
        }
        let columns = columns(&change);
        let sql = format!(
            "UPDATE sandboxes SET state = $1, expires_at = COALESCE($2, expires_at), \
             ended_at = COALESCE(ended_at, $3), error = COALESCE($4, error), \
             stop_reason = COALESCE(stop_reason, $5) WHERE id = $6 RETURNING {SANDBOX_COLUMNS}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(after.as_str())
            .bind(columns.expires_at)
            .bind(columns.ended_at)
            .bind(columns.error)
            .bind(columns.stop_reason)
            .bind(id.as_str())
            .fetch_one(&mut *tx)
            .await?;
        let sandbox = Box::new(sandbox(&row)?);
        if frees_key(&change) {
            sqlx::query("DELETE FROM idempotency_keys WHERE sandbox_id = $1")
                .bind(id.as_str())
                .execute(&mut *tx)
                .await?;
        }
        if before != after {
            ended::make_way(&mut tx, &self.kept, after, sandbox.owner.as_ref()).await?;
        }
        tx.commit().await?;
        Ok(Applied::Done { before, sandbox })
    }

    async fn shift_times(&self, by_ms: i64) -> Result<u64> {
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let moved =
            sqlx::query("UPDATE sandboxes SET expires_at = expires_at + $1 WHERE state IN ('creating', 'running')")
                .bind(by_ms)
                .execute(&mut *tx)
                .await?
                .rows_affected();
        for sql in [
            "UPDATE leases SET expires_at = expires_at + $1",
            "UPDATE workers SET last_heartbeat = last_heartbeat + $1",
            "UPDATE held SET lease_until = lease_until + $1",
        ] {
            sqlx::query(sql).bind(by_ms).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(moved)
    }

    async fn purge_ended(&self, before: Timestamp, now: Timestamp) -> Result<u64> {
        sqlx::query("DELETE FROM idempotency_keys WHERE created_at <= $1")
            .bind(key_ends(now))
            .execute(&self.writer)
            .await?;
        ended::purge(&self.writer, &self.kept, ms(before)).await
    }

    async fn insert_template(&self, new: &Template, rows_max: u64) -> Result<Inserted> {
        templates::insert(&self.writer, new, rows_max).await
    }

    async fn update_template(&self, name: &str, options: &SpawnOptions, at: Timestamp) -> Result<Option<Template>> {
        templates::update(&self.writer, name, options, at).await
    }

    async fn template(&self, name: &str) -> Result<Option<Template>> {
        templates::get(&self.readers, name).await
    }

    async fn templates(&self, after: Option<&str>, limit: u32) -> Result<Vec<Template>> {
        templates::list(&self.readers, after, limit).await
    }

    async fn delete_template(&self, name: &str) -> Result<bool> {
        templates::delete(&self.writer, name).await
    }

    async fn reserve_event_ids(&self, count: u64) -> Result<Range<u64>> {
        let mut writer = self.writer.acquire().await?;
        // Synced before use: ids that were published must not come again, even after a power
        // failure.
        sqlx::raw_sql("PRAGMA synchronous = FULL").execute(&mut *writer).await?;
        let end = sqlx::query_scalar::<_, i64>(
            "INSERT INTO counters (name, value) VALUES ('events', 1 + $1) \
             ON CONFLICT (name) DO UPDATE SET value = value + $1 RETURNING value",
        )
        .bind(i64::try_from(count).unwrap_or(i64::MAX))
        .fetch_one(&mut *writer)
        .await;
        sqlx::raw_sql("PRAGMA synchronous = NORMAL").execute(&mut *writer).await?;
        let end = u64::try_from(end?).map_err(|_| Error::Corrupt("the counter of event ids".to_owned()))?;
        Ok(end.saturating_sub(count)..end)
    }

    async fn save_quota(
        &self,
        owner: &OwnerId,
        quota: &Quota,
        at: Timestamp,
        rows_max: u64,
    ) -> Result<Option<OwnerQuota>> {
        quotas::save(&self.writer, owner, quota, at, rows_max).await
    }

    async fn quota(&self, owner: &OwnerId) -> Result<Option<OwnerQuota>> {
        quotas::get(&self.readers, owner).await
    }

    async fn quotas(&self, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>> {
        quotas::list(&self.readers, after, limit).await
    }

    async fn quota_summary(&self) -> Result<QuotaSummary> {
        quotas::summary(&self.readers).await
    }

    async fn delete_quota(&self, owner: &OwnerId) -> Result<bool> {
        quotas::delete(&self.writer, owner).await
    }

    async fn give_back(&self) -> Result<bool> {
        space::give_back(&self.writer, &self.path).await
    }

    async fn close(&self) {
        self.searches.close().await;
        self.readers.close().await;
        self.writer.close().await;
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::store::suite::kept;

    #[tokio::test]
    async fn the_states_that_count_are_those_of_the_rules() {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        let mut counted: Vec<String> =
            sqlx::query_scalar("SELECT state FROM active_states").fetch_all(&store.readers).await.unwrap();
        counted.sort();
        let mut active: Vec<&str> =
            State::ALL.iter().filter(|state| state.is_active()).map(|state| state.as_str()).collect();
        active.sort_unstable();
        assert_eq!(counted, active);
        store.close().await;
    }

    #[tokio::test]
    async fn sqlite_passes_the_suite() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        crate::store::suite::run(async || {
            let store: Box<dyn Store> = Box::new(Sqlite::open(&path, [7; 10]).await.unwrap());
            store
        })
        .await;
    }

    #[tokio::test]
    async fn sqlite_keeps_no_more_of_what_ended_than_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = Sqlite::open(&path, [7; 10]).await.unwrap().keeping(kept::KEPT);
        kept::run(&store).await;
        let store = store.keeping(KEPT);
        kept::fill_beyond(&store).await;
        let store = store.keeping(kept::KEPT);
        kept::a_bound_that_was_lowered_is_reached(&store).await;
        store.close().await;
    }

    #[tokio::test]
    async fn a_store_of_a_later_release_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = Sqlite::open(&path, [7; 10]).await.unwrap();
        sqlx::query("PRAGMA user_version = 999").execute(&store.writer).await.unwrap();
        store.close().await;
        assert!(matches!(Sqlite::open(&path, [7; 10]).await, Err(Error::TooNew { found: 999, .. })));
    }

    /// Monitoring reads the counts every few seconds, so their cost must not depend on the
    /// number of rows.
    #[tokio::test]
    async fn the_counts_are_read_without_a_look_at_sandboxes_or_owners() {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        let plan = sqlx::query(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {COUNTS}")));
        let steps = plan.fetch_all(&store.readers).await.unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
        assert_eq!(steps, ["SEARCH counts USING PRIMARY KEY (scope=?)"]);
        store.close().await;
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_written_is_not_well() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = Sqlite::open(&path, [7; 10]).await.unwrap();
        store.check().await.unwrap();
        let other = Sqlite::open(&path, [7; 10]).await.unwrap();
        let held = other.writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let waited = tokio::time::timeout(Duration::from_millis(100), store.check()).await;
        assert!(waited.is_err(), "it waits for the other one: {waited:?}");
        drop(held);
        other.close().await;
        store.check().await.expect("it is well again");
        store.close().await;
        assert!(store.check().await.is_err(), "a closed store is not well");
    }

    #[tokio::test]
    async fn a_store_without_room_says_so_and_is_well_again_once_there_is_some() {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        sqlx::query("PRAGMA max_page_count = 1").execute(&store.writer).await.unwrap();
        let mut tx = store.writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let large = sqlx::query("CREATE TABLE large AS SELECT zeroblob(10000000) AS content");
        let error = Error::from(large.execute(&mut *tx).await.unwrap_err());
        assert!(error.is_full(), "{error:?}");
        // SQLite does this by itself where the disk is full.
        sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
        drop(tx);
        store.check().await.expect("it is well again");
        store.close().await;
    }
}
