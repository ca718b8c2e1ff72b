use std::time::Duration;

use domain::State;
use sqlx::Row as _;

use super::Sqlite;
use super::database::KEPT;
use super::transactions::COUNTS;
use crate::Maintenance as _;
use crate::suite::kept;
use crate::{Error, Store};

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
    crate::suite::run(async || {
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
    let mut writer = other.writer.acquire().await.unwrap();
    let held = writer.begin().await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(100), store.check()).await;
    assert!(waited.is_err(), "it waits for the other one: {waited:?}");
    drop(held);
    drop(writer);
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
    let mut writer = store.writer.acquire().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    let large = sqlx::query("CREATE TABLE large AS SELECT zeroblob(10000000) AS content");
    let error = Error::from(large.execute(&mut *tx).await.unwrap_err());
    assert!(error.is_full(), "{error:?}");
    // SQLite does this by itself where the disk is full.
    sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
    drop(tx);
    drop(writer);
    store.check().await.expect("it is well again");
    store.close().await;
}

#[tokio::test]
async fn a_statement_whose_commit_fails_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
    let tables = "CREATE TABLE parents (id PRIMARY KEY); CREATE TABLE children (id PRIMARY KEY, \
                  parent REFERENCES parents DEFERRABLE INITIALLY DEFERRED)";
    sqlx::raw_sql(tables).execute(&store.writer).await.unwrap();
    let insert = || sqlx::query("INSERT INTO children VALUES (1, 2) RETURNING id");
    assert!(insert().fetch_optional(&store.writer).await.is_err());
    assert!(insert().fetch_one(&store.writer).await.is_err());
    assert!(insert().fetch_all(&store.writer).await.is_err());
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM children").fetch_one(&store.writer).await.unwrap();
    assert_eq!(rows, 0);
    store.check().await.unwrap();
    store.close().await;
}
