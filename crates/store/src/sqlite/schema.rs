//! The tables, and the upgrade of files of earlier releases.

use domain::StoreId;

use super::super::error::{Error, Result};
use super::connections::Connections;

/// Upgrade scripts. Step n brings a file from `user_version` n to n + 1. Steps are only ever
/// added.
const STEPS: &[&str] = &[
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
    include_str!("schema/0004.sql"),
    include_str!("schema/0005.sql"),
    include_str!("schema/0006.sql"),
    include_str!("schema/0007.sql"),
    include_str!("schema/0008.sql"),
    include_str!("schema/0009.sql"),
    include_str!("schema/0010.sql"),
    include_str!("schema/0011.sql"),
    include_str!("schema/0012.sql"),
    include_str!("schema/0013.sql"),
    include_str!("schema/0014.sql"),
    include_str!("schema/0015.sql"),
    include_str!("schema/0016.sql"),
    include_str!("schema/0017.sql"),
    include_str!("schema/0018.sql"),
    include_str!("schema/0019.sql"),
    include_str!("schema/0020.sql"),
    include_str!("schema/0021.sql"),
    include_str!("schema/0022.sql"),
];

/// Upgrades the file to the current schema, each step in a transaction.
pub(super) async fn upgrade(writer: &Connections) -> Result<()> {
    let known = STEPS.len() as i64;
    let found: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(writer).await?;
    if found > known {
        return Err(Error::TooNew { found, known });
    }
    for (step, sql) in STEPS.iter().enumerate().skip(usize::try_from(found).unwrap_or(0)) {
        let mut writer = writer.acquire().await?;
        let mut tx = writer.begin().await?;
        sqlx::raw_sql(*sql).execute(&mut *tx).await?;
        let version = format!("PRAGMA user_version = {}", step + 1);
        sqlx::raw_sql(sqlx::AssertSqlSafe(version)).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// Returns the id of the store; stores `new` if it has none yet.
pub(super) async fn store_id(writer: &Connections, new: StoreId) -> Result<StoreId> {
    sqlx::query("INSERT INTO store (id) SELECT $1 WHERE NOT EXISTS (SELECT 1 FROM store)")
        .bind(new.as_str())
        .execute(writer)
        .await?;
    let found: String = sqlx::query_scalar("SELECT id FROM store").fetch_one(writer).await?;
    StoreId::parse(&found).ok_or_else(|| Error::Corrupt(format!("store id `{found}`")))
}
