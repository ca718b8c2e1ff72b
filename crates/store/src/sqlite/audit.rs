//! The audit history in SQLite.

use async_trait::async_trait;
use domain::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite as Engine};

use super::super::audit::{AuditEntry, AuditFilter, AuditStore, NewAuditEntry};
use super::super::error::{Error, Result};
use super::database::Sqlite;
use super::rows::{count, ms};
use crate::clock::from_ms;

/// Maximum number of rows deleted by one statement, so that other writers can run in between.
const PRUNE_BATCH: u32 = 10_000;

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn entry(row: &SqliteRow) -> Result<AuditEntry> {
    let number = |name: &str| -> Result<u64> {
        u64::try_from(row.try_get::<i64, _>(name)?).map_err(|_| Error::Corrupt(format!("`{name}` of an audit row")))
    };
    Ok(AuditEntry {
        id: number("id")?,
        entry: NewAuditEntry {
            created_at: from_ms(row.try_get("created_at")?),
            actor: row.try_get("actor")?,
            action: row.try_get("action")?,
            method: row.try_get("method")?,
            path: row.try_get("path")?,
            status: u16::try_from(number("status")?).map_err(|_| Error::Corrupt("an audit row's status".to_owned()))?,
            duration_ms: number("duration_ms")?,
            request_id: row.try_get("request_id")?,
            remote_addr: row.try_get("remote_addr")?,
            user_agent: row.try_get("user_agent")?,
            detail: row.try_get("detail")?,
        },
    })
}

#[async_trait]
impl AuditStore for Sqlite {
    async fn insert_audit(&self, new: &NewAuditEntry) -> Result<u64> {
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO audit (created_at, actor, action, method, path, status, duration_ms, request_id, remote_addr, \
             user_agent, detail) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) RETURNING id",
        )
        .bind(ms(new.created_at))
        .bind(&new.actor)
        .bind(&new.action)
        .bind(&new.method)
        .bind(&new.path)
        .bind(new.status)
        .bind(signed(new.duration_ms))
        .bind(&new.request_id)
        .bind(&new.remote_addr)
        .bind(&new.user_agent)
        .bind(&new.detail)
        .fetch_one(&self.writer)
        .await?;
        u64::try_from(id).map_err(|_| Error::Corrupt("the id of an audit row".to_owned()))
    }

    async fn set_audit_detail(&self, id: u64, detail: &str) -> Result<()> {
        sqlx::query("UPDATE audit SET detail = $1 WHERE id = $2")
            .bind(detail)
            .bind(signed(id))
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    async fn audit(&self, filter: &AuditFilter, before: Option<u64>, limit: u32) -> Result<Vec<AuditEntry>> {
        let mut query = QueryBuilder::<Engine>::new("SELECT * FROM audit WHERE id < ");
        query.push_bind(before.map_or(i64::MAX, signed));
        for (column, text) in [("actor", &filter.actor), ("action", &filter.action), ("method", &filter.method)] {
            if let Some(text) = text {
                query.push(" AND ").push(column).push(" = ").push_bind(text);
            }
        }
        if let Some(status) = filter.status {
            query.push(" AND status = ").push_bind(status);
        }
        if let Some(text) = &filter.path {
            // Not LIKE: no character of the text is a wildcard.
            query.push(" AND instr(path, ").push_bind(text).push(") > 0");
        }
        if let Some(since) = filter.since {
            query.push(" AND created_at >= ").push_bind(ms(since));
        }
        if let Some(until) = filter.until {
            query.push(" AND created_at < ").push_bind(ms(until));
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.readers).await?;
        rows.iter().map(entry).collect()
    }

    async fn prune_audit(&self, before: Timestamp, keep: u64) -> Result<u64> {
        let mut pruned = 0;
        loop {
            let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE created_at < $1 LIMIT $2)";
            let done = sqlx::query(sql).bind(ms(before)).bind(PRUNE_BATCH).execute(&self.writer).await?;
            pruned += done.rows_affected();
            if done.rows_affected() < u64::from(PRUNE_BATCH) {
                break;
            }
        }
        let (all, admins): (i64, i64) =
            sqlx::query_as("SELECT (SELECT COUNT(*) FROM audit), (SELECT COUNT(*) FROM audit WHERE actor = 'admin')")
                .fetch_one(&self.writer)
                .await?;
        let (all, admins) = (count(all), count(admins));
        let others = all - admins;
        for (is, there, kept) in [
            ("=", admins, keep.saturating_sub(others).max(keep - keep / 2)),
            ("<>", others, keep.saturating_sub(admins).max(keep / 2)),
        ] {
            let mut over = there.saturating_sub(kept);
            while over > 0 {
                let sql = format!(
                    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE actor {is} 'admin' ORDER BY id LIMIT $1)"
                );
                let step = over.min(PRUNE_BATCH.into());
                let done = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(signed(step))
                    .execute(&self.writer)
                    .await?
                    .rows_affected();
                if done == 0 {
                    break;
                }
                pruned += done;
                over = over.saturating_sub(done);
            }
        }
        Ok(pruned)
    }
}

#[cfg(test)]
mod test {
    use std::time::Instant;

    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::Maintenance as _;

    async fn empty() -> (tempfile::TempDir, Sqlite) {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        (dir, store)
    }

    #[tokio::test]
    async fn each_page_of_a_hundred_thousand_rows_is_quick() {
        let (_dir, store) = empty().await;
        sqlx::raw_sql(
            "WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 99999) \
             INSERT INTO audit (created_at, actor, action, method, path, status, duration_ms, request_id) \
             SELECT n * 1000, CASE WHEN n = 5 THEN 'worker:w1' ELSE 'admin' END, 'quotas.get', 'GET', \
             '/api/v1/admin/quotas/owner-' || n, CASE WHEN n = 6 THEN 404 ELSE 200 END, 1, 'r' FROM n",
        )
        .execute(&store.writer)
        .await
        .unwrap();
        let none = AuditFilter::default;
        for (what, filter, rows) in [
            ("all", none(), 100),
            ("a common actor", AuditFilter { actor: Some("admin".into()), ..none() }, 100),
            ("a rare actor", AuditFilter { actor: Some("worker:w1".into()), ..none() }, 1),
            ("an action never taken", AuditFilter { action: Some("x".into()), ..none() }, 0),
            ("a rare status", AuditFilter { status: Some(404), ..none() }, 1),
            ("a part of a path", AuditFilter { path: Some("owner-777".into()), ..none() }, 100),
            ("a path never requested", AuditFilter { path: Some("%".into()), ..none() }, 0),
            ("long ago", AuditFilter { until: Some(from_ms(50_000)), ..none() }, 50),
            ("lately", AuditFilter { since: Some(from_ms(99_990_000)), ..none() }, 10),
        ] {
            // The best of five, since the machine has other work too.
            let mut best = std::time::Duration::MAX;
            for _ in 0..5 {
                let started = Instant::now();
                assert_eq!(store.audit(&filter, None, 100).await.unwrap().len(), rows, "{what}");
                best = best.min(started.elapsed());
            }
            assert!(best < std::time::Duration::from_millis(500), "{what} took {best:?}");
        }
        assert_eq!(store.prune_audit(from_ms(60_000_000), 30_000).await.unwrap(), 70_000);
        store.close().await;
    }

    #[test]
    fn any_part_of_a_path_is_found_as_it_is_written() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_dir, store) = runtime.block_on(empty());
        let text = "[%_\\\\*?'\"\\[\\]aAé.]{1,6}";
        let row = NewAuditEntry {
            created_at: from_ms(0),
            actor: String::new(),
            action: String::new(),
            method: String::new(),
            path: String::new(),
            status: 200,
            duration_ms: 0,
            request_id: String::new(),
            remote_addr: None,
            user_agent: None,
            detail: None,
        };
        TestRunner::default()
            .run(&(proptest::collection::vec(text, 1..8), "[%_\\\\*?'\"\\[\\]aAé.]{1,2}"), |(paths, part)| {
                let found = runtime.block_on(async {
                    for path in &paths {
                        store.insert_audit(&NewAuditEntry { path: path.clone(), ..row.clone() }).await.unwrap();
                    }
                    let filter = AuditFilter { path: Some(part.clone()), ..AuditFilter::default() };
                    let found = store.audit(&filter, None, 100).await.unwrap();
                    store.prune_audit(from_ms(0), 0).await.unwrap();
                    found.into_iter().map(|row| row.entry.path).rev().collect::<Vec<_>>()
                });
                let expected: Vec<_> = paths.into_iter().filter(|path| path.contains(&part)).collect();
                prop_assert_eq!(found, expected);
                Ok(())
            })
            .unwrap();
    }
}
