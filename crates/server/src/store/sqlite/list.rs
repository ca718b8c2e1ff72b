//! The list of sandboxes.

use domain::{OwnerId, Timestamp};
use sqlx::sqlite::SqlitePool;
use sqlx::{QueryBuilder, Row};

use super::super::{ListFilter, Page, Place, Result};
use super::ms;
use super::rows::{SANDBOX_COLUMNS, sandbox};

/// One part of the list. Without a filter on labels it costs what it returns,
/// whatever number there is: rows come from an index in their order.
pub(super) async fn page(pool: &SqlitePool, filter: &ListFilter, now: Timestamp) -> Result<Page> {
    let mut query = QueryBuilder::new(format!("SELECT rowid AS row, {SANDBOX_COLUMNS} FROM sandboxes"));
    query.push(" WHERE state <> 'destroyed' AND (state = 'failed' OR expires_at > ").push_bind(ms(now)).push(")");
    if let Some(owner) = &filter.owner {
        query.push(" AND owner_id = ").push_bind(OwnerId::as_str(owner).to_owned());
    }
    if let Some(state) = filter.state {
        query.push(" AND state = ").push_bind(state.as_str());
    }
    if let Some(provider) = &filter.provider {
        query.push(" AND provider = ").push_bind(provider.clone());
    }
    for (key, value) in &filter.metadata {
        query.push(" AND EXISTS (SELECT 1 FROM json_each(metadata) WHERE key = ").push_bind(key.clone());
        query.push(" AND value = ").push_bind(value.clone()).push(")");
    }
    if let Some(Place { created_at_ms, row }) = filter.after {
        query.push(" AND (created_at, rowid) < (").push_bind(created_at_ms).push(", ").push_bind(row).push(")");
    }
    query.push(" ORDER BY created_at DESC, rowid DESC");
    if let Some(limit) = filter.limit {
        // One more tells whether there is a next part.
        query.push(" LIMIT ").push_bind(i64::from(limit) + 1);
    }
    // Each number of labels is a text of its own, which a connection would keep.
    let mut rows = query.build().persistent(filter.metadata.is_empty()).fetch_all(pool).await?;
    let mut next = None;
    if let Some(limit) = filter.limit.and_then(|limit| usize::try_from(limit).ok())
        && rows.len() > limit
    {
        rows.truncate(limit);
        next = rows
            .last()
            .map(|last| {
                Ok::<_, sqlx::Error>(Place { created_at_ms: last.try_get("created_at")?, row: last.try_get("row")? })
            })
            .transpose()?;
    }
    Ok(Page { sandboxes: rows.iter().map(sandbox).collect::<Result<_>>()?, next })
}
