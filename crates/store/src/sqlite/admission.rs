//! Admission of a sandbox, in one transaction.
//!
//! Each statement is a round trip to the thread of its connection, which costs more than the statement. A
//! sandbox that no other server can take is therefore admitted by one statement if the rules allow it,
//! which it repeats. If it admits nothing, the transaction decides again, and names the reason.

use std::sync::LazyLock;

use domain::{Active, Caps, Lease, OwnerId, Quota, Room, SandboxEgress, SandboxId, Timestamp, WorkerId};
use sqlx::{Executor, Row, Sqlite, SqliteConnection};

use super::super::admission::{Admitted, IdempotencyKey, KEY_LIFETIME, NewSandbox};
use super::super::error::Result;
use super::super::sandboxes::Sandbox;
use super::connections::Connections;
use super::placement;
use super::policies::policies_text;
use super::pool;
use super::rows::{self, count, metadata_text, ms};
use super::terms;

/// Columns of a row that is admitted, of which [`row`] binds the values.
const COLUMNS: &str = "id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, owner_id, worker_id, \
    created_at, expires_at, egress, auto_pause_ms, terms, env";
const VALUES: &str = "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17";

/// Admission under the rules of [`Room::admit`] and [`domain::Candidate::is_eligible`], for this server as
/// the worker `$11`: the trigger of the view decides. The parameters after the row: the lease's generation and
/// end, the key and its request, the time up to which keys have lapsed, the time since which a worker must have
/// sent a heartbeat, and the two caps. Returns the row that was stored, if one was.
static ADMIT_HERE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO admissions ({COLUMNS}, generation, lease_until, key, request, keys_since, beats_since, cap, \
             owner_cap) VALUES ({VALUES}, $18, $19, $20, $21, $22, $23, $24, $25); \
         SELECT 1 FROM sandboxes WHERE id = $1"
    )
});

/// Admits a sandbox if the rules allow it.
pub(super) async fn admit(writer: &Connections, new: &NewSandbox) -> Result<Admitted> {
    if new.is_for_here() && admit_here(writer, new).await? {
        return Ok(Admitted::Yes(WorkerId::local()));
    }
    decide(writer, new).await
}

/// Admits those sandboxes that the rules allow and no other server can take, in order, in one transaction.
pub(super) async fn admit_together(writer: &Connections, new: &[&NewSandbox]) -> Result<Vec<bool>> {
    let mut writer = writer.acquire().await?;
    let mut tx = writer.begin().await?;
    let mut stored = Vec::with_capacity(new.len());
    for new in new {
        stored.push(new.is_for_here() && admit_here(&mut *tx, new).await?);
    }
    tx.commit().await?;
    Ok(stored)
}

async fn decide(writer: &Connections, new: &NewSandbox) -> Result<Admitted> {
    let NewSandbox { sandbox, egress, caps, key, placement, pool } = new;
    let owner = sandbox.owner.as_ref();
    let mut writer = writer.acquire().await?;
    let mut tx = writer.begin().await?;
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
    let sql = format!("INSERT INTO sandboxes ({COLUMNS}) VALUES ({VALUES})");
    row(&sql, sandbox, egress, &worker).execute(&mut *tx).await?;
    placement::lease(&mut tx, sandbox, &worker, placement).await?;
    tx.commit().await?;
    Ok(Admitted::Yes(worker))
}

/// Stores a sandbox that no other server could take, if the rules allow it.
async fn admit_here<'c>(writer: impl Executor<'c, Database = Sqlite>, new: &NewSandbox) -> Result<bool> {
    let NewSandbox { sandbox, egress, caps, key, placement, .. } = new;
    let here = WorkerId::local();
    let now = sandbox.created_at;
    let Lease { generation, expires_at, .. } = Lease::first(sandbox.id.as_str(), &here, now, placement.lease_ttl);
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let silent = i64::try_from(placement.stale_after.as_millis()).unwrap_or(i64::MAX);
    let stored = row(&ADMIT_HERE, sandbox, egress, &here)
        .bind(number(generation))
        .bind(ms(expires_at))
        .bind(key.as_ref().map(|key| &key.key))
        .bind(key.as_ref().map(|key| &key.request))
        .bind(key_ends(now))
        .bind(ms(now).saturating_sub(silent))
        .bind(number(caps.max_sandboxes))
        .bind(number(caps.max_sandboxes_per_owner))
        // All of it: sqlx ends a statement at its first row, and then drops the error of its end.
        .fetch_all(writer)
        .await?;
    Ok(!stored.is_empty())
}

/// Reads the active counts and the caps in one statement, since every spawn waits for it.
pub(super) async fn room(connection: &mut SqliteConnection, owner: Option<&OwnerId>, caps: Caps) -> Result<Room> {
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
        .bind(new.terms.as_deref().map(terms::text))
        .bind(new.terms.as_deref().and_then(terms::env_text))
}

#[cfg(test)]
mod test {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::time::Duration;

    use domain::{ProcessDefaults, Terms};
    use proptest::prelude::*;
    use sqlx::{AssertSqlSafe, raw_sql};

    use super::*;
    use crate::sqlite::Sqlite;
    use crate::suite::{placement, sandbox};
    use crate::{Maintenance as _, Store as _};

    const HOUR_MS: i64 = 3_600_000;

    /// State of the store and request, as far as a decision depends on them.
    #[derive(Debug, Clone)]
    struct Case {
        owner: bool,
        total: u64,
        of_owner: u64,
        of_worker: u64,
        caps: (u64, u64),
        quota: Option<u64>,
        worker: (&'static str, bool, i64, &'static str, u64),
        /// True if the request has a key; the age of a row with this key.
        key: (bool, Option<i64>),
    }

    fn cases() -> impl Strategy<Value = Case> {
        // Most values allow the admission, so that each rule is often the only one that refuses it.
        let count = || prop_oneof![3 => Just(0u64), 1 => 1..4u64];
        let cap = || prop_oneof![2 => Just(0u64), 2 => Just(9), 1 => 1..4u64];
        let status = prop_oneof![6 => Just("online"), 1 => Just("draining"), 1 => Just("unhealthy")];
        let silence = prop_oneof![4 => Just(0), 1 => Just(HOUR_MS - 1), 1 => Just(HOUR_MS), 1 => Just(-HOUR_MS)];
        let offers = prop_oneof![4 => Just(r#"["a","mock"]"#), 1 => Just("[]"), 1 => Just(r#"["mock2","k\"mock"]"#)];
        let lifetime = i64::try_from(KEY_LIFETIME.as_millis()).unwrap();
        let taken =
            prop_oneof![2 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(lifetime - 1)), 1 => Just(Some(lifetime))];
        let worker = (status, prop::bool::weighted(0.1), silence, offers, cap());
        let quota = prop::option::weighted(0.5, cap());
        (any::<bool>(), count(), count(), count(), (cap(), cap()), quota, worker, (any::<bool>(), taken)).prop_map(
            |(owner, total, of_owner, of_worker, caps, quota, worker, key)| Case {
                owner,
                total,
                of_owner,
                of_worker,
                caps,
                quota,
                worker,
                key,
            },
        )
    }

    impl Case {
        fn asked(&self) -> NewSandbox {
            self.asked_as(1)
        }

        fn asked_as(&self, n: u8) -> NewSandbox {
            let env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
            let defaults = ProcessDefaults { env, ..ProcessDefaults::default() };
            let terms = self.key.0.then(|| Box::new(Terms { defaults, wakes: true, ..Terms::default() }));
            let sandbox = Sandbox { created_at: crate::clock::from_ms(100 * HOUR_MS), terms, ..sandbox(n, None) };
            let owner = self.owner.then(|| OwnerId::parse("anna").unwrap());
            let mut placement = placement();
            placement.stale_after = Duration::from_millis(HOUR_MS as u64);
            NewSandbox {
                sandbox: Sandbox { owner, ..sandbox },
                egress: SandboxEgress::default(),
                caps: Caps { max_sandboxes: self.caps.0, max_sandboxes_per_owner: self.caps.1 },
                key: self.key.0.then(|| IdempotencyKey { key: "k".to_owned(), request: "r".to_owned() }),
                placement,
                pool: None,
            }
        }

        /// Puts the store into this state, whatever it was in.
        async fn lay(&self, store: &Sqlite) {
            let now = 100 * HOUR_MS;
            let (status, unreached, silence, offers, worker_max) = self.worker;
            let owner = if self.owner { "anna" } else { "" };
            let mut sql = format!(
                "DELETE FROM sandboxes; DELETE FROM leases; DELETE FROM counts; DELETE FROM worker_owners; \
                 DELETE FROM workers; DELETE FROM quotas; DELETE FROM idempotency_keys; \
                 INSERT INTO counts VALUES ('active', '', {}), ('worker', 'local', {}), ('owner', 'anna', {}); \
                 INSERT INTO workers (id, hostname, status, providers, capabilities, max_sandboxes, \
                     max_sandboxes_per_owner, last_heartbeat, created_at, updated_at, unreached) \
                 VALUES ('local', 'h', '{status}', '{offers}', '[]', {worker_max}, 1, {}, 0, 0, {unreached});",
                self.total,
                self.of_worker,
                self.of_owner,
                now - silence,
            );
            if let Some(quota) = self.quota {
                sql += &format!(
                    "INSERT INTO quotas (owner_id, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, created_at, updated_at) \
                     VALUES ('anna', {quota}, 0, 0, 0, 0);"
                );
            }
            if let Some(age) = self.key.1 {
                sql +=
                    &format!("INSERT INTO idempotency_keys VALUES ('{owner}', 'k', 'other', 'sb-x', {});", now - age);
            }
            raw_sql(AssertSqlSafe(sql)).execute(&store.writer).await.unwrap();
        }

        /// Returns everything that an admission writes.
        async fn written(store: &Sqlite) -> Vec<String> {
            let mut texts = Vec::new();
            for sql in [
                "SELECT id || state || owner_id || worker_id || created_at || expires_at FROM sandboxes",
                "SELECT terms FROM sandboxes",
                "SELECT env FROM sandboxes",
                "SELECT resource_id || holder_id || generation || expires_at FROM leases",
                "SELECT owner_id || key || request || sandbox_id || created_at FROM idempotency_keys",
                "SELECT scope || name || rows FROM counts ORDER BY scope, name",
                "SELECT worker_id || owner_id || rows FROM worker_owners",
            ] {
                let rows: Vec<Option<String>> = sqlx::query_scalar(sql).fetch_all(&store.writer).await.unwrap();
                texts.extend(rows.into_iter().map(Option::unwrap_or_default));
            }
            texts
        }
    }

    #[test]
    fn several_that_are_asked_for_together_are_admitted_as_one_after_the_other_is() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store = runtime.block_on(Sqlite::open(&dir.path().join("store.db"), [7; 10])).unwrap();
        let seen = std::cell::RefCell::new([0; 4]);
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(500));
        let elsewhere = prop::array::uniform3(prop::bool::weighted(0.2));
        let checked = runner.run(&(cases(), elsewhere), |(case, elsewhere)| {
            let mut asked = [1, 2, 3].map(|n| case.asked_as(n));
            for (new, elsewhere) in asked.iter_mut().zip(elsewhere) {
                new.placement.here = !elsewhere;
                new.key = new.key.take().filter(|_| new.sandbox.id != case.asked_as(2).sandbox.id);
            }
            runtime.block_on(async {
                case.lay(&store).await;
                let mut one_by_one = Vec::new();
                for new in &asked {
                    one_by_one.push(matches!(decide(&store.writer, new).await.unwrap(), Admitted::Yes(_)));
                }
                let by_rules = Case::written(&store).await;
                case.lay(&store).await;
                let together = store.admit_together(&asked.each_ref()).await.unwrap();
                prop_assert_eq!(&together, &one_by_one);
                prop_assert_eq!(Case::written(&store).await, by_rules);
                seen.borrow_mut()[together.iter().filter(|stored| **stored).count()] += 1;
                Ok(())
            })
        });
        checked.unwrap();
        assert!(seen.borrow().iter().all(|cases| *cases > 10), "none, some and all: {seen:?}");
        runtime.block_on(store.close());
    }

    #[test]
    fn the_one_statement_admits_what_the_rules_admit_and_writes_the_same() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store = runtime.block_on(Sqlite::open(&dir.path().join("store.db"), [7; 10])).unwrap();
        let (admitted, refused) = (Cell::new(0), Cell::new(0));
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1_000));
        let checked = runner.run(&cases(), |case| {
            runtime.block_on(async {
                case.lay(&store).await;
                let before = Case::written(&store).await;
                let allowed = matches!(decide(&store.writer, &case.asked()).await.unwrap(), Admitted::Yes(_));
                let by_rules = Case::written(&store).await;
                case.lay(&store).await;
                let is_admitted = admit_here(&store.writer, &case.asked()).await.unwrap();
                let by_statement = Case::written(&store).await;
                prop_assert_eq!(is_admitted, allowed);
                prop_assert_eq!(&by_statement, &by_rules);
                prop_assert_eq!(by_statement == before, !allowed);
                let number = if allowed { &admitted } else { &refused };
                number.set(number.get() + 1);
                Ok(())
            })
        });
        checked.unwrap();
        assert!(admitted.get() > 100 && refused.get() > 100, "both are tried: {admitted:?} {refused:?}");
        runtime.block_on(store.close());
    }
}
