//! The file of the store, and the connections to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::StoreId;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::super::error::Result;
use super::super::sandboxes::{Kept, KeptRows};
use super::connections::Connections;
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
    pub(super) writer: Connections,
    pub(super) readers: Connections,
    pub(super) searches: Connections,
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
            // A crash of the server loses nothing. A power failure may lose the last moments: it ends
            // every box that is not on disk, and a snapshot whose row it took is removed.
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("cache_size", "-512")
            .pragma("journal_size_limit", space::WAL_BYTES_MAX.to_string());
        let writer = Connections::new(options.clone(), 1);
        schema::upgrade(&writer).await?;
        space::prepare(&writer, path).await?;
        space::keep_reserve(path);
        let id = schema::store_id(&writer, StoreId::from_entropy(entropy)).await?;
        let readers = Connections::new(options.clone(), READERS);
        let searches = Connections::new(options, SEARCHERS);
        Ok(Self { id, path: path.to_owned(), kept: KEPT, writer, readers, searches })
    }

    /// Sets the bounds on rows of ended sandboxes.
    #[must_use]
    pub fn keeping(mut self, kept: Kept) -> Self {
        self.kept = kept;
        self
    }
}
