//! The list of sandboxes.

use domain::{OwnerId, SandboxId, State, Timestamp, WorkerId};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row};

use super::super::error::Result;
use super::super::sandboxes::{Cursor, ListFilter, Page};
use super::connections::Connections;
use super::rows::{SANDBOX_COLUMNS, metadata_text, ms, sandbox, sandbox_id};

/// Reads one page of the list. Without a filter on labels the cost depends on the size of the
/// page only: an index yields the rows in their order.
pub(super) async fn page(pool: &Connections, filter: &ListFilter, now: Timestamp) -> Result<Page> {
    let mut query = QueryBuilder::new(format!("SELECT rowid AS row, {SANDBOX_COLUMNS} FROM sandboxes"));
    query.push(" WHERE state <> 'destroyed' AND (state = 'failed' OR expires_at > ").push_bind(ms(now)).push(")");
    if let Some(owner) = &filter.owner {
        query.push(" AND owner_id = ").push_bind(OwnerId::as_str(owner).to_owned());
    }
    if let Some(state) = filter.state {
        query.push(" AND state = ").push_bind(state.as_str());
    }
    if !filter.states.is_empty() {
        query.push(" AND state IN (");
        let mut listed = query.separated(", ");
        for state in &filter.states {
            listed.push_bind(state.as_str());
        }
        query.push(")");
    }
    if let Some(made_of) = &filter.made_of {
        query.push(" AND json_extract(terms, '$.made_of') = ").push_bind(made_of.clone());
    }
    if let Some(from) = filter.created_from {
        query.push(" AND created_at >= ").push_bind(ms(from));
    }
    if let Some(provider) = &filter.provider {
        query.push(" AND provider = ").push_bind(provider.clone());
    }
    if !filter.metadata.is_empty() {
        // One pass over a row's labels, and one statement text, for any number of labels.
        let wanted = i64::try_from(filter.metadata.len()).unwrap_or(i64::MAX);
        query.push(
            " AND (SELECT COUNT(*) FROM json_each(metadata) WHERE (key, value) IN (SELECT key, value FROM json_each(",
        );
        query.push_bind(metadata_text(&filter.metadata)).push("))) = ").push_bind(wanted);
    }
    if let Some(Cursor { created_at_ms, row }) = filter.after {
        let beyond = if filter.oldest_first { ">" } else { "<" };
        query.push(" AND (created_at, rowid) ").push(beyond).push(" (");
        query.push_bind(created_at_ms).push(", ").push_bind(row).push(")");
    }
    let order = if filter.oldest_first { "created_at, rowid" } else { "created_at DESC, rowid DESC" };
    query.push(" ORDER BY ").push(order);
    if let Some(limit) = filter.limit {
        // One more row shows whether there is a next page.
        query.push(" LIMIT ").push_bind(i64::from(limit) + 1);
    }
    read(query.build().fetch_all(pool).await?, filter.limit)
}

/// Reads one page of the sandboxes in a state, oldest first. The cost depends on the size of the
/// page only.
pub(super) async fn in_state(pool: &Connections, state: State, after: Option<Cursor>, limit: u32) -> Result<Page> {
    let sql = format!(
        "SELECT rowid AS row, {SANDBOX_COLUMNS} FROM sandboxes WHERE state = $1 \
         AND (created_at, rowid) > ($2, $3) ORDER BY created_at, rowid LIMIT $4"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(state.as_str())
        .bind(after.map_or(i64::MIN, |after| after.created_at_ms))
        .bind(after.map_or(i64::MIN, |after| after.row))
        .bind(i64::from(limit) + 1)
        .fetch_all(pool)
        .await?;
    read(rows, Some(limit))
}

/// Reads the ids of the sandboxes on a worker that are in one of these states.
pub(super) async fn ids_in(
    pool: &Connections,
    states: &[State],
    worker: &WorkerId,
    provider: Option<&str>,
) -> Result<Vec<SandboxId>> {
    let mut query = QueryBuilder::new("SELECT id FROM sandboxes WHERE worker_id = ");
    query.push_bind(worker.as_str());
    if let Some(provider) = provider {
        query.push(" AND provider = ").push_bind(provider.to_owned());
    }
    query.push(" AND state IN (");
    let mut listed = query.separated(", ");
    for state in states {
        listed.push_bind(state.as_str());
    }
    query.push(")");
    let rows = query.build().fetch_all(pool).await?;
    rows.iter().map(|row| sandbox_id(&row.try_get::<String, _>("id")?)).collect()
}

/// Returns the page that these rows make: there is a next page if they are more than `limit`.
fn read(mut rows: Vec<SqliteRow>, limit: Option<u32>) -> Result<Page> {
    let mut next = None;
    if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok())
        && rows.len() > limit
    {
        rows.truncate(limit);
        next = rows
            .last()
            .map(|last| {
                Ok::<_, sqlx::Error>(Cursor { created_at_ms: last.try_get("created_at")?, row: last.try_get("row")? })
            })
            .transpose()?;
    }
    Ok(Page { sandboxes: rows.iter().map(sandbox).collect::<Result<_>>()?, next })
}

#[cfg(test)]
mod test {
    use crate::Maintenance as _;
    use std::time::Duration;

    use domain::{Caps, Metadata, SandboxId};
    use futures_util::future::{Either, join_all, select};
    use sqlx::Connection as _;

    use crate::clock::from_ms;
    use crate::{ListFilter, NewSandbox, Sandbox, Sqlite, Store as _, suite};

    fn labels(count: usize) -> Metadata {
        (0..count).map(|n| (format!("{n:02}"), "x".repeat(235))).collect()
    }

    async fn fill(store: &Sqlite, rows: u8) {
        suite::here(store).await;
        for n in 0..rows {
            let created_at = from_ms(n.into());
            let sandbox = Sandbox { metadata: labels(64), created_at, ..suite::sandbox(n, None) };
            let new = NewSandbox {
                egress: domain::SandboxEgress::default(),
                sandbox,
                caps: Caps::default(),
                key: None,
                placement: suite::placement(),
                pool: None,
            };
            store.admit(&new).await.unwrap();
        }
    }

    /// A hundred searches of half a million labels each.
    #[tokio::test]
    async fn searches_by_labels_hold_up_no_request_that_reads_one_row() {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        fill(&store, 250).await;
        let mut metadata = labels(63);
        metadata.insert("zz".to_owned(), "1".to_owned());
        let filter = ListFilter { metadata, limit: Some(1), ..ListFilter::default() };
        let searches = std::pin::pin!(join_all((0..100).map(|_| store.sandboxes(&filter, from_ms(0)))));
        let read = std::pin::pin!(async {
            for n in 0..20 {
                assert!(store.sandbox(&SandboxId::from_entropy([n; 10])).await.unwrap().is_some());
            }
        });
        // The searches are polled first, and the row reads after them.
        let Either::Right(((), searches)) = select(searches, read).await else { panic!("the rows came last") };
        for found in tokio::time::timeout(Duration::from_secs(60), searches).await.unwrap() {
            assert!(found.unwrap().sandboxes.is_empty());
        }
        store.close().await;
    }

    /// Each different statement text would stay in a connection's cache.
    #[tokio::test]
    async fn any_number_of_labels_is_one_statement() {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        fill(&store, 2).await;
        for count in 1..=64 {
            let filter = ListFilter { metadata: labels(count), ..ListFilter::default() };
            assert_eq!(store.sandboxes(&filter, from_ms(0)).await.unwrap().sandboxes.len(), 2, "{count}");
        }
        let kept = store.searches.acquire().await.unwrap().cached_statements_size();
        assert_eq!(kept, 1);
        store.close().await;
    }
}
