//! The file of the store, and the connections to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::StoreId;
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqliteSynchronous};
use sqlx::{Connection as _, Sqlite as Engine};

use super::super::error::Result;
use super::super::sandboxes::{Kept, KeptRows};
use super::{schema, space};

/// Number of reading connections. Each is a thread with a page cache, and reads take
/// microseconds, so that two cores' worth suffice.
const READERS: u32 = 2;
/// Number of connections for searches over all rows. Searches queue behind each other, and no
/// read of single rows waits for them.
const SEARCHERS: u32 = 1;
/// Deadline of a statement for another process's lock on the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Bounds on ended rows unless [`Sqlite::keeping`] sets others.
pub(super) const KEPT: Kept =
    Kept { failed: KeptRows { total: 1_000, per_owner: 100 }, destroyed: KeptRows { total: 10_000, per_owner: 1_000 } };

/// A store in one SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    pub(super) id: StoreId,
    pub(super) path: PathBuf,
    pub(super) kept: Kept,
    pub(super) writer: SqlitePool,
    pub(super) readers: SqlitePool,
    pub(super) searches: SqlitePool,
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
